"""Test the playground in a real browser: its answers, and its accessibility."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Page, Request, Route, expect

from boundarymorph.access import callers
from boundarymorph.cli import demo
from tests.clients.examples import typescript
from tests.system.service import Service, service
from tests.web.conftest import NODE_MODULES, Open

QUERY = "convert a string to a number"
LINK = f"/playground?index={demo.INDEX}&query={QUERY}&budget=20&k=15"
AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text()


def answered(page: Page) -> None:
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".total")).to_have_count(2)
    expect(page.locator("#problem")).to_be_empty()


def search(page: Page) -> None:
    page.click("#go")
    answered(page)


def paste(page: Page, documents: str) -> None:
    page.check("[value=pool]")
    page.fill("#documents", documents)


def titles(page: Page, side: str) -> list[str]:
    return page.locator(f"#{side} .title").all_inner_texts()


def selections(page: Page) -> list[Any]:
    """Record the selections that the page requests, except its comparisons."""
    asked: list[Any] = []

    def on_request(request: Request) -> None:
        if "explain" in (request.post_data or ""):
            asked.append(request.post_data_json)

    page.on("request", on_request)
    return asked


def check_accessibility(page: Page) -> None:
    page.evaluate(AXE)
    for scheme, forced in (("dark", "none"), ("light", "active"), ("light", "none")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        violations = page.evaluate("axe.run(document).then(({ violations }) => violations)")
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.servers
def test_playground_opens_with_two_sets_to_compare(opened: Open, tmp_path: Path) -> None:
    """The service has no index and uses the embedded models, as for a new visitor."""
    with service(tmp_path / "data", embedded=True) as running:
        for width in (1_280, 390):
            with opened(url=running.url, viewport={"width": width, "height": 900}) as page:
                check_opening(page, running, phone=width == 390)
        assert f"{running.url}/playground" in running.log


def check_opening(page: Page, running: Service, phone: bool) -> None:
    asked = selections(page)
    answered(page)
    check_accessibility(page)
    assert phone or page.evaluate("document.documentElement.scrollHeight") <= 1_700
    search(page)
    (request,) = asked
    query, pool, answer = request["query"], request["pool"], running.select(**request)
    chosen, ranks = answer["documents"], [document["retrieval_rank"] for document in answer["documents"]]
    read = [document["source"] == "cross_encoder" for document in chosen]

    def scored(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = {"pool": documents, "relevance": "scorer", "return_documents": True}
        return list(running.select(query=query, budget=5, k=5, **wanted)["documents"])

    plain, ours = scored(pool[:5]), scored([pool[rank - 1] for rank in ranks])
    assert titles(page, "ours") == [document["title"] for document in chosen]
    assert titles(page, "plain") == [document["title"] for document in plain]
    sums = [sum(document["cross_encoder_score"] for document in documents) for documents in (plain, ours)]
    assert page.locator(".total b").all_inner_texts() == [f"{total:.1f}" for total in sums] and sums[1] > 4 * sums[0]
    different = page.locator("#ours .different .title").all_inner_texts()
    assert different == [document["title"] for document in chosen if document["retrieval_rank"] > 5]
    assert page.locator("#ours .from").all_inner_texts() == [f"from {rank}" for rank in ranks]
    assert "sleep" in page.locator("#ours .snippet b").all_inner_texts()
    tags = page.locator("#ours .tag").all_inner_texts()
    assert [tag == "read" for tag in tags] == read and any(re.fullmatch(r"estimated .+ ± .+", tag) for tag in tags)
    if phone:
        expect(page.locator("#plain")).to_be_hidden()
        page.click(".switch button:first-child")
        expect(page.locator("#ours")).to_be_hidden()
    for closed in page.locator("details.card > summary, .documents:visible summary").all():
        closed.click()
    marks = 5 + read.count(False)  # the set, and the documents that were read and left out
    for view, parts, count in (("Along", ".mark", marks), ("Score by", ".line", 2), ("All calls", "tbody tr", 5)):
        page.click(f"#how [role=tab]:has-text('{view}')")
        expect(page.locator(f"#view > :not(.legend) {parts}:not(.legend *)")).to_have_count(count)
    check_accessibility(page)


def test_playground_sends_one_request_per_edit(opened: Open) -> None:
    with opened(LINK) as page:
        answered(page)
        asked = selections(page)
        for _ in range(3):
            page.press("[data-of=budget]", "ArrowRight")
        expect(page.locator("#plain-title")).to_contain_text("35 scores")
        page.fill("#budget", "33")
        search(page)
        page.wait_for_timeout(500)  # longer than the page waits while a slider moves
        assert [request["budget"] for request in asked] == [35, 33]


def test_playground_url_holds_all_fields_but_documents_and_key(opened: Open, demo_service: Service) -> None:
    fields = {"depth": "500", "filter": '{"kind": "function"}', "distinct": "text", "budget": "12", "k": "6"}
    with opened(LINK) as page:
        answered(page)
        page.click(".more > summary")
        for name, value in fields.items():
            page.fill(f"[name={name}]", value)
        page.select_option("[name=method]", "boundarymorph")
        page.check("[name=hybrid]")
        search(page)
        request = page.text_content("#code")
        page.reload()
        answered(page)
        assert page.text_content("#code") == request and '"hybrid": true' in (request or "")
        paste(page, "one secret\nanother secret")
        page.uncheck("#ranked")
        search(page)
        assert "ranked=0" in page.url and "secret" not in page.url
        page.go_back()
        expect(page.locator("#index")).to_be_visible()
        answered(page)


def test_playground_reports_an_unknown_index_of_a_link(opened: Open) -> None:
    with opened(f"/playground?query={QUERY}&index=nope") as page:
        asked = selections(page)
        expect(page.locator("#problem")).to_contain_text("There is no index 'nope' here")
        check_accessibility(page)
        assert asked == []


def test_playground_marks_an_answer_to_earlier_settings(opened: Open) -> None:
    with opened(LINK) as page:
        answered(page)
        for query, marked in (("read a file", True), (QUERY, False)):
            page.fill("#query", query)
            expect(page.locator("#stale")).to_be_visible(visible=marked)


def test_playground_repeats_a_request_after_retry_after(opened: Open) -> None:
    """The service answers so while its models are warming up."""

    def refuse(route: Route) -> None:
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        body = {"title": "Not ready", "detail": "the models are warming up; try again", "status": 503}
        route.fulfill(status=503, headers=headers, body=orjson.dumps(body))

    with opened(LINK, refusals=True) as page:
        answered(page)
        page.route("**/select", refuse, times=1)
        page.click("#go")
        expect(page.locator("#progress")).to_have_text("The models are warming up …")
        answered(page)


def test_playground_page_and_answer_are_small(opened: Open, demo_service: Service) -> None:
    documents = [
        {"id": f"module.name_{i}", "text": f"{QUERY} in line {i} of file {i % 97}. " * 6} for i in range(6_500)
    ]
    demo_service.fill("large", documents, encoder=None)
    with opened("/docs") as page:
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        sizes: list[int] = []
        network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        packed: list[str | None] = []
        page.on("response", lambda answer: packed.append(answer.headers.get("content-encoding")))
        page.goto(f"{demo_service.url}/playground?index=large&query={QUERY}&budget=50&k=50")
        answered(page)
        assert 30_000 < sum(sizes) < 150_000 and packed.count(None) <= 2  # two answers are short


def test_playground_keeps_the_focus(opened: Open) -> None:
    with opened(f"{LINK}&also=a second question") as page:
        expect(page.locator("#rest")).to_be_visible()
        page.press("#rest", "Enter")
        assert page.evaluate("document.activeElement === document.querySelectorAll('#ours summary')[6]")
        page.route("**/select", lambda route: None)
        page.click("#go")
        page.press("#cancel", "Enter")
        expect(page.locator("#go")).to_be_focused()


def test_playground_shows_pasted_documents_as_text(opened: Open) -> None:
    """They may contain HTML and any script."""
    arabic = "كيف يتحول النص إلى رقم في بايثون"
    image = {"id": 7, "title": "<b>bold</b>", "text": "<img src=nowhere onerror=alert(1)>"}
    documents = [image, {"text": "long " * 40}, {"text": arabic}]
    with opened() as page:
        paste(page, "\n".join(orjson.dumps(each).decode() for each in documents))
        page.fill("#query", "تحويل النص إلى رقم")
        search(page)
        directions = "elements => elements.map(each => [each.textContent, getComputedStyle(each).direction])"
        shown = dict(page.locator("#ours .title, #query").evaluate_all(directions))
        assert shown == {"": "rtl", "<b>bold</b>": "ltr", "long " * 15 + "long…": "ltr", arabic: "rtl"}
        for two in ("[1] Smith on sleep\n{braces} in plain words", '{\n "text": "one"\n}\n{"text": "two"}'):
            paste(page, two)
            search(page)
            expect(page.locator("#ours li")).to_have_count(2)
        for wrong, complaint in (
            ('[{"text": "never ends"', "The documents begin like a JSON array but are not one"),
            ('{"text": "fine"}\n{"text": broken}', "Document 2 is not a JSON object"),
            ("", "Paste some documents first"),
        ):
            paste(page, wrong)
            page.click("#go")
            expect(page.locator("#problem")).to_contain_text(complaint)


def test_playground_asks_for_the_key_and_never_shows_it(opened: Open, tmp_path: Path) -> None:
    secret, key = callers.make_key("reader", [callers.Scope.SELECT])
    with (
        service(tmp_path / "data", environment={"BOUNDARYMORPH_KEYS": str(key)}) as running,
        opened(url=running.url, refusals=True) as page,
    ):
        for wrong, words in (("not-the-key", "this API key is not known"), ("ключ", "only ASCII characters")):
            page.fill("#key", wrong)
            page.press("#key", "Tab")
            expect(page.locator("#problem")).to_contain_text(words)
        page.fill("#key", secret)
        page.press("#key", "Enter")
        answered(page)
        assert all("BOUNDARYMORPH_API_KEY" in code and secret not in code + page.url for code in snippets(page))


def snippets(page: Page) -> Iterator[str]:
    page.click("#request > summary")
    for language in ("curl", "Python", "TypeScript"):
        page.click(f"#code-{language}")
        yield page.inner_text("#code")


def test_playground_code_makes_the_same_request(opened: Open, tmp_path: Path) -> None:
    with opened(LINK) as page:
        page.fill("#query", "don't round 'half' up")
        search(page)
        page.locator("#common").evaluate("each => (each.open = true)")
        differing, others = (set(titles(page, side)) for side in ("ours", "plain"))
        shown = differing | set(titles(page, "common"))  # a set is larger than ten
        assert len(shown) == 15 and len(differing) == len(others) and not shown & others
        curl, python, script = snippets(page)
    for command in (("bash", "-c", curl), (sys.executable, "-c", python), typescript(script, tmp_path)):
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = orjson.loads(output)["documents"] if command[0] == "bash" else output.splitlines()
        assert {each["id"] if isinstance(each, dict) else each.split()[1] for each in found} == shown
