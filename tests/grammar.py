"""Check the grammar of pages, docstrings, and messages with Harper: `make check`.

Code, names, formulas, and quantities are not prose, so the checker sees them as code. Every rule of Harper applies to
every file. The dictionary has the vocabulary of the field and proper names.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harper import Dialect, Linter

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md"]
CODE = ["service", "clients/python", "load_tests", "deploy", "docker", "docs", "models", "tests"]
VOCABULARY = [
    "api", "asyncio", "awaitable", "batcher", "batchers", "boundarymorph", "buildah", "cpu", "cuda", "dataclass",
    "determinantal", "dtype", "elementwise", "gpu", "http", "https", "httptools", "httpx", "jsonb", "jsonl",
    "kriging", "libpq", "listwise", "malloc", "mcp", "nginx", "openapi", "orthonormal", "pgvector", "podman",
    "pointwise", "postprocessor", "pydantic", "pyplot", "qrels", "readyz", "reorthogonalization", "reweighted",
    "safetensors", "sigmoid", "sigmoids", "softmax", "sqrt", "ss", "str", "subclasses", "tokenised", "traceparent",
    "tridiagonal", "ulimit", "unscored", "unwritable", "url", "uvicorn",
]  # fmt: skip
NAMES = [
    "Angelopoulos", "Anand", "Aiohttp", "Baseten", "Benjamini", "Büttcher", "Caplan", "Cholesky", "Choudhury",
    "Cohere", "Dasgupta", "Dashscope", "Deerwester", "Dify", "Dinkelbach", "Fisch", "Gangadharaiah", "Golub",
    "Hahne", "Halko", "Hochberg", "Jina", "Jarvelin", "Kalyanakrishnan", "Kekalainen", "Lanczos", "Langchain",
    "Lightrag", "Litellm", "Macdonald", "Machado", "Martinsson", "Milvus", "Mixedbread", "Nemotron", "Qdrant",
    "Quam", "Qwen", "Rathee", "Rocchio", "Schemathesis", "Schuster", "Starlette", "Tonellotto", "Tropp", "Vamana",
    "Voyageai", "Weaviate", "Wilcoxon", "Xinference", "Xu", "Zaragoza", "Zhang", "Zhou", "Zilliz",
]  # fmt: skip
# Spans of code, addresses, paths, options, quantities with a unit, and words that are not English: with a digit, an
# underscore, a capital letter after the first, or a single letter.
NO_PROSE = re.compile(
    r"""(?P<code>``?[^`]+``?)(?:'s)?
      | (?P<name> [a-z()]+://\S*
          | (?<!\w)/\w[\w/.-]*
          | (?<!\w)\.[a-z]\w*
          | %[.\d]*[a-z]s?
          | \beq\.\s[\w-]+
          | (?:\d+,\s)+\.\.\.
          | (?<!\w)[A-Za-z]'[A-Za-z]?(?![\w'])
          | (?<!\w)["'][\w.:-]+["']
          | (?<![\w-])--?[a-z][\w-]*(?:[ =][A-Z]+)?
          | (?<![\w.])[.\d][\d.,]*\s(?:ms|µs|s|h|[kKMG]i?B|%)(?!\w)
          | \((?:[\w+*/ -]{1,9},\s?)+[\w+*/. -]{0,9}\)
          | (?<!\w)(?:\d{1,3}(?:,\d{3})+|\.\d+)
          | [\w./:<>=+*^|@?-]*(?:[\d_<>=+*^|@ⱼᵢ]|(?<=[\w/])[A-Z]|(?<=\w)[./:](?=\w))(?:[\w./:<>=+*^|@-]*\w)?(?:'s)?
          | (?<![\w'])[b-zB-HJ-Z](?:-th)?(?![\w'])
        )""",
    re.VERBOSE,
)


def readable(text: str) -> str:
    """Return a paragraph with a capital letter at its start, and all that is no prose as code."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("**", "").strip())
    text = NO_PROSE.sub(lambda match: match["code"] or f"`{match['name']}`", text)
    return text[:1].upper() + text[1:]


def parts_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each paragraph, list item, heading, and cell of a table."""
    text = re.sub(r"(?ms)^(```|<!--).*?(^```$|-->)", lambda match: "\n" * match[0].count("\n"), text)
    first, block = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not line.strip() or re.match(r"\s*(?:[-*>] |[|#]|\d+\. )", line):
            if block:
                yield first, block
            first, block = number, ""
        if line.startswith("#"):
            yield number, line.lstrip("# ")
            continue
        if re.match(r"\s*\|", line):
            for cell in re.split(r"(?<!\\)\|", line):
                yield number, cell.strip(" -:")
        else:
            block, first = (
                (f"{block} {line.strip()}", first) if block else (re.sub(r"^\s*(?:[-*>]|\d+\.)\s+", "", line), number)
            )


def parts_of_docstring(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring, and the description of each argument."""
    prose = re.sub(r"(?m)^    (?! *\w[\w*]*: ).*(?:[{=].*|  \S.*)$", "", text)  # without examples
    for part in re.split(r"\n\s*\n(?=\S)|\n\s*(?=[-*|] |\w[\w.*, ]*: )", prose):
        part = " ".join(part.split())
        part = re.sub(r"^(?:Args|Returns|Raises|Attributes|Yields):\s*", "", part)
        yield re.sub(r"^[\w.*, ]+: (?=\S)", "", part) if re.match(r"^[\w.*, ]{1,40}: ", part) else part


def parts_of_code(source: str, *, messages: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of docstrings, and of literals with four words or more."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    others: set[ast.AST | None] = set()  # literals that are docstrings or data
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            assert isinstance(node.body[0], ast.Expr)
            others.add(node.body[0].value)
            for part in parts_of_docstring(text):
                yield node.body[0].lineno, part
    if not messages:
        return
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            others.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "default":
            others.add(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "`x`" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in others | inside:
            text = node.value
        else:
            continue
        if len(re.findall(r"(?<!\S)[A-Za-z]{2,}(?!\S)", text)) >= 4 and not re.search(
            r"[<{;\\]|\b(?:select|create)\b.*\b(?:from|using|table)\b", text, re.IGNORECASE
        ):
            for part in re.split(r"\n\s*\n", text):
                yield node.lineno, " ".join(part.split())


def main() -> None:
    linter = Linter(Dialect.BRITISH)
    words = VOCABULARY + NAMES
    linter.import_words([*words, *(f"{word}'s" for word in words)])
    texts = [
        (path, *part)
        for pattern in PAGES
        for path in sorted(ROOT.glob(pattern))
        for part in parts_of_page(path.read_text())
    ]
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {".venv", "node_modules", "build"} & set(path.parts):
                messages = folder != "tests"  # the literals of tests are data
                texts += [(path, *part) for part in parts_of_code(path.read_text(), messages=messages)]
    found = 0
    for path, line, text in texts:
        clear = readable(text)
        for rule, lints in linter.organized_lints(clear).items():
            for lint in lints:
                found += 1
                print(f"{path.relative_to(ROOT)}:{line}: {rule}: {lint.problem_text!r} in {clear!r}: {lint.message}")
    sys.exit(f"{found} mistakes in {len(texts)} texts" if found else 0)


if __name__ == "__main__":
    main()
