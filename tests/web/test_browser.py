"""The playground in a real browser: it answers as the API does, and everybody can read it.

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
from playwright.sync_api import Page, Route, expect

from boundarymorph.access import callers
from boundarymorph.cli import demo
from tests.clients.examples import typescript
from tests.system.service import Service, service
from tests.web.conftest import NODE_MODULES, Open

QUERY = "convert a string to a number"
LINK = f"/playground?index={demo.INDEX}&query={QUERY}&budget=20&k=15"
AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text()
LIMIT = 150_000  # bytes over the wire, for 6,500 candidates
TALLEST = 1_700  # pixels of the page before a card is opened
FOUND = {  # what anybody would choose for the example's question
    "Fit people fall asleep sooner",
    "Yoga before bedtime",
    "Lifting weights, sleeping through",
    "One workout, one good night",
    "A brisk walk against insomnia",
    "Evening training does not keep you awake",
}


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


def selections(page: Page) -> list[dict[str, Any]]:
    """The selections that the page asks for from now on. Its comparisons are not explained."""
    asked: list[dict[str, Any]] = []

    def on_request(request: Any) -> None:
        if request.url.endswith("/select") and "explain" in request.post_data_json:
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


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without an index, with the embedded models, as a visitor has them."""
    with service(tmp_path_factory.mktemp("empty") / "data", embedded=True) as running:
        yield running


@pytest.mark.servers
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_playground_opens_on_two_sets_that_anybody_can_judge(
    opened: Open, empty: Service, width: int, height: int
) -> None:
    with opened(url=empty.url, viewport={"width": width, "height": height}) as page:
        asked = selections(page)
        answered(page)
        check_accessibility(page)
        assert width < 500 or page.evaluate("document.documentElement.scrollHeight") <= TALLEST
        search(page)
        (request,) = asked
        answer = empty.select(**request)
        by_id = {document["id"]: document for document in request["pool"]}
        assert titles(page, "ours") == [document["title"] for document in answer["documents"]]
        assert {by_id[document["id"]]["title"] for document in answer["documents"]} <= FOUND
        plain = empty.select(query=request["query"], pool=request["pool"][:5], budget=5, k=5, relevance="scorer")
        assert titles(page, "plain") == [by_id[document["id"]]["title"] for document in plain["documents"]]
        different = [each["title"] for each in answer["documents"] if each["retrieval_rank"] > 5]
        assert page.locator("#ours .different .title").all_inner_texts() == different
        ranks = [f"from {document['retrieval_rank']}" for document in answer["documents"]]
        assert page.locator("#ours .from").all_inner_texts() == ranks
        assert "sleep" in page.locator("#ours .snippet b").all_inner_texts()
        read = [document["source"] == "cross_encoder" for document in answer["documents"]]
        tags = page.locator("#ours .tag").all_inner_texts()
        assert [tag == "read" for tag in tags] == read and any(re.fullmatch(r"estimated .+ ± .+", tag) for tag in tags)
        whole = [by_id[document["id"]] for document in answer["documents"]]
        every = empty.select(query=request["query"], pool=whole, budget=5, k=5, relevance="scorer")
        sums = [sum(each["cross_encoder_score"] for each in found["documents"]) for found in (plain, every)]
        assert page.locator(".total b").all_inner_texts() == [f"{total:.1f}" for total in sums]
        assert sums[1] > 3 * sums[0]
        if width < 500:
            expect(page.locator("#plain")).to_be_hidden()
            page.click(".switch button:first-child")
            expect(page.locator("#ours")).to_be_hidden()
        for card in page.locator("details.card > summary, .documents:visible summary").all():
            card.click()
        marks = 5 + sum(document["source"] != "cross_encoder" for document in answer["documents"])
        expect(page.locator("#view svg[role=img] .mark")).to_have_count(marks)  # the documents, and what was left out
        page.click("text=Score by calls")
        expect(page.locator("#view svg[role=img] .line")).to_have_count(2)
        page.click("text=All calls")
        expect(page.locator("#view tbody tr")).to_have_count(5)
        check_accessibility(page)


def test_playground_shows_where_large_sets_differ(opened: Open, demonstrated: Service) -> None:
    answer = demonstrated.select(query=QUERY, index=demo.INDEX, budget=20, k=15, reuse=False)
    with opened(LINK) as page:
        answered(page)
        page.evaluate("document.querySelectorAll('#common, #rest').forEach(each => (each.open = true, each.click()))")
        ours, common = titles(page, "ours"), titles(page, "common")
        assert sorted(ours + common) == sorted(document["id"] for document in answer["documents"])
        assert ours and len(ours) == len(titles(page, "plain")) and not {*ours} & {*titles(page, "plain")}
    assert f"{demonstrated.url}/playground" in demonstrated.log


def test_each_edit_asks_once(opened: Open) -> None:
    with opened(LINK) as page:
        answered(page)
        asked = selections(page)
        for _ in range(3):
            page.press("[data-of=budget]", "ArrowRight")
        expect(page.locator("#plain-title")).to_contain_text("35 scores")
        page.fill("#budget", "33")
        search(page)
        page.wait_for_timeout(500)  # longer than the page waits for a slider that still moves
        assert [request["budget"] for request in asked] == [35, 33]


def test_address_holds_all_but_documents_and_the_key(opened: Open, demonstrated: Service) -> None:
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
        expect(page.locator(".more [name=depth]")).to_be_visible()
        paste(page, "one secret\nanother secret")
        page.uncheck("#ranked")
        search(page)
        assert "ranked=0" in page.url and "secret" not in page.url
        page.go_back()
        expect(page.locator("#index")).to_be_visible()
        answered(page)


def test_unknown_index_of_a_link_is_reported(opened: Open) -> None:
    with opened(f"/playground?query={QUERY}&index=nope") as page:
        asked = selections(page)
        expect(page.locator("#problem")).to_contain_text("There is no index 'nope' here")
        check_accessibility(page)
        assert asked == []


def test_answer_to_earlier_settings_is_marked(opened: Open) -> None:
    with opened(LINK) as page:
        answered(page)
        page.fill("#query", "read a file")
        expect(page.locator("#stale")).to_be_visible()
        page.fill("#query", QUERY)
        expect(page.locator("#stale")).to_be_hidden()


def test_request_is_repeated_when_the_service_says_so(opened: Open) -> None:
    """As it does while its models are warming up."""
    refused: list[Route] = []

    def refuse(route: Route) -> None:
        refused.append(route)
        body = {"title": "Not ready", "detail": "the models are warming up; try again", "status": 503}
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        route.fulfill(status=503, headers=headers, body=orjson.dumps(body))

    with opened(LINK, refusals=True) as page:
        answered(page)
        page.route("**/select", refuse, times=1)
        page.click("#go")
        expect(page.locator("#progress")).to_have_text("The models are warming up …")
        answered(page)
        assert len(refused) == 1


def test_page_and_answer_are_small(opened: Open, demonstrated: Service) -> None:
    words = re.findall(
        r"\w+", "Convert a string to a number, parse a file, read the date, and list all lines of the text."
    )
    texts = [" ".join(words[i * j % len(words)] for j in range(1, 40)) for i in range(6_500)]
    documents = [{"id": f"package.module.function_{i}", "text": f"{text} {i}"} for i, text in enumerate(texts)]
    demonstrated.fill("large", documents, encoder=None)
    with opened("/docs") as page:
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        sizes: list[int] = []
        network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        packed: list[str | None] = []
        page.on("response", lambda answer: packed.append(answer.headers.get("content-encoding")))
        page.goto(f"{demonstrated.url}/playground?index=large&query={QUERY}&budget=50&k=50")
        answered(page)
        expect(page.locator("#pitch")).to_contain_text("6,500")
        assert 30_000 < sum(sizes) < LIMIT and packed.count(None) <= 2  # the list of indexes and another short one


def test_focus_is_never_lost(opened: Open) -> None:
    with opened() as page:
        answered(page)
        page.press("#edit", "Enter")
        expect(page.locator("#documents")).to_be_focused()
        paste(page, "\n".join(f"document {n}" for n in range(40)))
        page.fill("#k", "30")
        page.fill("#budget", "0")
        search(page)
        page.press("#rest, #common > summary >> visible=true", "Enter")
        assert page.evaluate("document.activeElement.matches('summary')")
        page.route("**/select", lambda route: None)
        page.click("#go")
        page.press("#cancel", "Enter")
        expect(page.locator("#go")).to_be_focused()


def test_pasted_documents_are_shown_as_text(opened: Open) -> None:
    """They may hold HTML and any script."""
    arabic = "كيف يتحول النص إلى رقم في بايثون"
    documents = [
        {"id": 7, "title": "<b>bold</b>", "text": "<img src=nowhere onerror=alert(1)>"},
        {"_id": "own", "text": "long " * 40},
        {"text": arabic},
    ]
    with opened() as page:
        paste(page, "\n".join(orjson.dumps(each).decode() for each in documents))
        page.fill("#query", "تحويل النص إلى رقم")
        search(page)
        directions = "elements => elements.map(each => [each.textContent, getComputedStyle(each).direction])"
        shown = dict(page.locator("#ours .title, #query").evaluate_all(directions))
        cut = ("long " * 16).strip() + "…"
        assert shown == {"": "rtl", "<b>bold</b>": "ltr", cut: "ltr", arabic: "rtl"}
        page.locator("#ours summary", has_text="long").click()
        expect(page.locator("#ours details[open] .id")).to_have_text("own")
        for two in ("[1] Smith on sleep\n{braces} in plain words", '{\n "text": "one"\n}\n{"text": "two"}'):
            paste(page, two)
            search(page)
            expect(page.locator("#ours li")).to_have_count(2)


MISTAKES = [
    ("#query", "  ", "query: must have a character that is not white space"),
    ("#documents", '[{"text": "never ends"', "The documents begin like a JSON array, but are none"),
    ("#documents", '{"text": "fine"}\n{"text": broken}', "Document 2 is not a JSON object"),
    ("#documents", "", "Paste some documents first"),
]


def test_mistakes_are_reported(opened: Open) -> None:
    with opened(refusals=True) as page:
        answered(page)
        for field, value, complaint in MISTAKES:
            page.check("[value=pool]" if field == "#documents" else "[value=example]")
            page.fill("#query", QUERY)
            right = page.input_value(field)
            page.fill(field, value)
            page.click("#go")
            expect(page.locator("#problem")).to_contain_text(complaint)
            page.fill(field, right)


def test_key_is_asked_for_and_never_shown(opened: Open, tmp_path: Path) -> None:
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
        assert all("BOUNDARYMORPH_API_KEY" in code and secret not in code for code in snippets(page))
        assert secret not in page.url


def snippets(page: Page) -> Iterator[str]:
    page.click("#request > summary")
    for language in ("curl", "Python", "TypeScript"):
        page.click(f"#code-{language}")
        yield page.inner_text("#code")


def test_code_makes_the_same_request(opened: Open, tmp_path: Path) -> None:
    with opened(LINK) as page:
        answered(page)
        page.fill("#k", "5")
        page.fill("#query", "don't round 'half' up")
        search(page)
        shown = titles(page, "ours")
        curl, python, script = snippets(page)
    assert [each["id"] for each in orjson.loads(printed("bash", "-c", curl))["documents"]] == shown
    for command in ((sys.executable, "-c", python), typescript(script, tmp_path)):
        assert [line.split()[1] for line in printed(*command).splitlines()] == shown


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
