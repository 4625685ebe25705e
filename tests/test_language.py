"""Test that docstrings, comments, and messages avoid unidiomatic phrases and long sentences."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("service", "clients", "load_tests", "tests", "deploy", "docker", "docs", "models")
    for path in (ROOT / folder).rglob("*.py")
    if not {".venv", "node_modules", "build"} & set(path.parts)
)
LONGEST = 35  # words of a sentence, without symbols, numbers and words in capitals, as in SQL
FIRST_LINE = 90  # characters of the first line of a docstring

BANNED = {
    r"\bwhat is\b": "name the thing: 'the mistake', 'the value', 'the rest'",
    r"\bwho is\b": "name the person or the part: 'the caller'",
    r"\bwhoever\b": "'the caller that', 'anyone who'",
    r"\bso many\b": "the number, or 'this many'",
    r"(?:^|[#.,:;(]\s*)(?:that|those) of\b": "repeat the noun: 'the scores of'",
    r"^# of\b": "a noun before it: '# share of the documents'",
    r"^\w+: (?:of|in|from|to|by(?! default))\b": "a noun: 'limit: The number of entries'",
    r"\bis (?-i:none)\b": "'there is no ...', or 'is not set'",
    r"\bof theirs\b": "'their ...'",
    r"\bis told\b": "'is given', 'receives', 'observes'",
}


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment paragraph and string literal."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and (token.start[0] != last + 1 or not token.line.lstrip().startswith("#")):
            yield first, " ".join(["#", *block])
            block = []
        first = first if block else token.start[0]
        last = token.start[0]
        block.append(token.string.lstrip("#: ").rstrip())
    if block:
        yield first, " ".join(["#", *block])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def paragraphs(text: str) -> list[str]:
    """Split a text at blank lines, list items and the lines of a section."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n\s*(?=[-*|`>#{]|\w+:\s|\d+\. )", text)]


def length(sentence: str) -> int:
    return sum(not word.isupper() and any(map(str.isalpha, word)) for word in sentence.split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_avoids_banned_phrases(path: Path) -> None:
    found = []
    for line, text in prose(path.read_text()):
        for part in paragraphs(text):
            found += [
                f"{line}: {match[0]!r} in {part!r}: write {instead}"
                for pattern, instead in BANNED.items()
                for match in re.finditer(pattern, part, re.IGNORECASE)
            ]
            found += [
                f"{line}: a sentence of {length(sentence)} words: {sentence!r}"
                for sentence in re.split(r"(?<=[.!?;:])\s+", part)
                if length(sentence) > LONGEST
            ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_begin_with_a_short_sentence(path: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, documented)]
    first = [text.split("\n")[0] for node in nodes if (text := ast.get_docstring(node))]
    assert not [line for line in first if len(line) > FIRST_LINE or not line.endswith(".")]
