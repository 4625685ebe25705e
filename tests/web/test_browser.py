"""The pages in a real browser: they answer as the API does, and everybody can read them.

No test here is a coroutine: while the browser runs, Playwright has an event loop of its own in this thread.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Page, expect

from boundarymorph.access import callers
from boundarymorph.cli import demo
from tests.clients.examples import typescript
from tests.system.service import Service, service
from tests.web.conftest import NODE_MODULES, Open

QUERY = "convert a string to a number"
AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text()


def ask(page: Page, query: str = QUERY, **fields: object) -> None:
    """Fill in the form and wait for the selection and the comparison."""
    expect(page.locator("#index option")).to_have_count(1)
    page.evaluate("document.querySelector('.more').open = true")
    for name, value in {"query": query, **fields}.items():
        page.fill(f"[name={name}]", str(value))
    search(page)


def search(page: Page) -> None:
    page.click("#go")
    compared(page)


def compared(page: Page) -> None:
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#compared .verdict")).to_be_visible()
    expect(page.locator("#problem")).to_be_empty()


def paste(page: Page, documents: str) -> None:
    page.check("[value=pool]")
    page.fill("#documents", documents)


def titles(page: Page, where: str = "#set") -> list[str]:
    return page.locator(f"{where} summary .title").all_inner_texts()


def selected(running: Service, **request: Any) -> dict[str, Any]:
    """The API's answer to a request like the page's."""
    return running.select(**{"query": QUERY, "index": demo.INDEX, "reuse": False, **request})


def ids(answer: dict[str, Any]) -> list[str]:
    return [document["id"] for document in answer["documents"]]


def outcome(page: Page) -> list[float]:
    """The total relevance in the headline, and that of plain reranking."""
    return [float(number) for number in re.findall(r"\d+\.\d+", page.inner_text("#headline"))[-2:]]


def check_accessibility(page: Page) -> None:
    page.evaluate(AXE)
    for scheme, forced in (("dark", "none"), ("light", "active"), ("light", "none")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        violations = page.evaluate("axe.run(document).then(({ violations }) => violations)")
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []


@pytest.mark.servers
@pytest.mark.parametrize(("width", "height"), [(1440, 1000), (320, 640)], ids=["desktop", "phone"])
def test_playground_shows_the_answer_beside_plain_reranking(
    opened: Open, demonstrated: Service, width: int, height: int
) -> None:
    answer = selected(demonstrated, budget=40, k=20, return_documents=True, explain="pool")
    believed = dict(zip(answer["pool"]["ids"], answer["pool"]["relevance"], strict=True))
    with opened(viewport={"width": width, "height": height}) as page:
        compared(page)  # a query of the demo, without a click
        ask(page, budget=40, k=20)
        page.click("#rest")
        assert titles(page) == ids(answer)
        for details in page.locator("details").all():
            details.evaluate("details => (details.open = true)")
        ours, theirs = (set(titles(page, f"#differing .only:nth-of-type({n})")) for n in (1, 2))
        assert ours and ours <= set(ids(answer)) and len(ours) == len(theirs) and not theirs & set(ids(answer))
        sums = [sum(map(believed.__getitem__, each)) for each in (ids(answer), {*ids(answer), *theirs} - ours)]
        assert outcome(page) == pytest.approx(sums, abs=0.051)
        assert page.locator("#all-calls tbody tr").count() == 40
        expect(page.locator("#set .text").first).to_have_text(answer["documents"][0]["text"])
        for chart in ("ranking", "curve-chart"):
            painted = "each => each.getContext('2d').getImageData(0, 0, each.width, each.height).data.some(Boolean)"
            assert page.locator(f"#{chart} canvas").evaluate(painted)
        check_accessibility(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert f"{demonstrated.url}/playground" in demonstrated.log


def test_playground_shows_pasted_documents_as_text(opened: Open) -> None:
    """They may hold HTML and any script."""
    arabic = "كيف يتحول النص إلى رقم في بايثون"
    documents = [
        {"id": 7, "title": "<b>bold</b>", "text": "<img src=nowhere onerror=alert(1)>"},
        {"_id": "own", "text": "plain"},
        {"text": arabic},
    ]
    with opened() as page:
        page.fill("#query", "تحويل النص إلى رقم")
        paste(page, "\n".join(orjson.dumps(each).decode() for each in documents))
        search(page)
        directions = "elements => elements.map(each => [each.textContent, getComputedStyle(each).direction])"
        shown = dict(page.locator("#set summary .title, #query").evaluate_all(directions))
        assert shown == {"": "rtl", "<b>bold</b>": "ltr", "plain": "ltr", arabic: "rtl"}
        page.locator("#set summary", has_text="plain").click()
        expect(page.locator("#set .id")).to_have_text("own")
        for two in ("[1] Smith on sleep\n{braces} in plain words", '{\n "text": "one"\n}\n{"text": "two"}'):
            paste(page, two)
            search(page)
            assert page.locator("#set > li").count() == 2


def test_playground_example_shows_a_gain(opened: Open, tmp_path: Path) -> None:
    """With the embedded models, as a visitor has them."""
    with service(tmp_path / "data", embedded=True) as running, opened(url=running.url) as page:
        expect(page.locator("#no-index")).to_contain_text("There is no index yet")
        search(page)
        ours, plain = outcome(page)
        assert ours > 1.2 * plain


MISTAKES = [
    ("#query", "  ", "query: must have a character that is not white space"),
    ("[name=filter]", "kind", "The filter is not JSON"),
    ("#documents", '[{"text": "never ends"', "The documents begin like a JSON array, but are none"),
    ("#documents", '{"text": "fine"}\n{"text": broken}', "Document 2 is not a JSON object"),
    ("#key", "ключ", "only ASCII characters"),
]


def test_playground_reports_mistakes(opened: Open) -> None:
    with opened(refusals=True) as page:
        ask(page, budget=5, k=5)
        for field, value, complaint in MISTAKES:
            page.check("[value=pool]" if field == "#documents" else "[value=index]")
            right = page.input_value(field)
            page.fill(field, value)
            page.click("#go")
            expect(page.locator("#problem")).to_contain_text(complaint)
            page.fill(field, right)
        check_accessibility(page)


def test_playground_key_is_asked_for_and_never_shown(opened: Open, tmp_path: Path) -> None:
    secret, key = callers.make_key("reader", [callers.Scope.SELECT])
    with (
        service(tmp_path / "data", environment={"BOUNDARYMORPH_KEYS": str(key)}) as running,
        opened(url=running.url, refusals=True) as page,
    ):
        expect(page.locator("#no-index")).to_contain_text("API key")
        page.fill("#key", "not-the-key")
        page.press("#key", "Tab")
        expect(page.locator("#no-index")).to_have_text("The service does not know this key: paste it again.")
        page.fill("#key", secret)
        page.fill("#query", QUERY)
        paste(page, "one\ntwo")
        search(page)
        for code in snippets(page):
            assert "BOUNDARYMORPH_API_KEY" in code and secret not in code


def snippets(page: Page) -> Iterator[str]:
    for language in ("curl", "Python", "TypeScript"):
        page.click(f"#tab-{language}")
        yield page.inner_text("#code")


def test_playground_code_makes_the_same_request(opened: Open, tmp_path: Path) -> None:
    with opened() as page:
        ask(page, "don't round 'half' up", budget=10, k=5)
        shown = titles(page)
        curl, python, script = snippets(page)
    assert ids(orjson.loads(printed("bash", "-c", curl))) == shown
    for command in ((sys.executable, "-c", python), typescript(script, tmp_path)):
        assert [line.split()[1] for line in printed(*command).splitlines()] == shown


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
