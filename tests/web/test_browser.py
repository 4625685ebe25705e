"""The pages, as somebody uses them.

No test here is a coroutine: while the browser runs, Playwright has an event loop of its own in this thread.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image
from playwright.sync_api import Page, Request, Route, expect

from boundarymorph.access import callers
from boundarymorph.calibration.calibration import Calibration, ProbabilityMap
from boundarymorph.cli import demo
from boundarymorph.retrieval.local.catalog import LocalCatalog
from tests.clients.examples import typescript
from tests.system.service import Service, service
from tests.web.conftest import NODE_MODULES, Open, fill

WHEN = "2026-11-28T10:00:00+00:00"
QUERY = "convert a string to a number"
AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text()
TITLE = "summary .title"
LANGUAGES = ("curl", "Python", "TypeScript")
NOTE_PROGRESS = """
    window.seen = [];
    addEventListener("DOMContentLoaded", () => {
        const progress = document.querySelector("#progress");
        new MutationObserver(() => seen.push(progress.textContent)).observe(progress, { childList: true });
    });
"""


def ask(page: Page, query: str = QUERY, **fields: object) -> None:
    """Fill in the form and wait for the selection and the comparison."""
    expect(page.locator("#index option")).to_have_count(1)
    show_options(page)
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


def show_options(page: Page) -> None:
    page.evaluate("document.querySelector('.more').open = true")


def choose_the_example(page: Page) -> None:
    page.check("[value=pool]")
    page.click("#example")


def titles(page: Page, where: str = "#set") -> list[str]:
    return page.locator(f"{where} {TITLE}").all_inner_texts()


def selected(running: Service, **request: Any) -> dict[str, Any]:
    """The API's answer to a request like the page's."""
    wanted = {"query": QUERY, "index": demo.INDEX, "reuse": False, "return_documents": True, **request}
    return running.select(**wanted)


def ids(answer: dict[str, Any]) -> list[str]:
    return [document["id"] for document in answer["documents"]]


def requests(page: Page) -> list[dict[str, Any]]:
    """The selections that the page asks for from now on; the list grows."""
    sent: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/select"):
            sent.append(orjson.loads(request.post_data or ""))

    page.on("request", note)
    return sent


def outcome(page: Page) -> tuple[float, float]:
    """The total relevance in the headline, and that of plain reranking."""
    found = re.search(r"a total relevance of ([\d.]+) against ([\d.]+)$", page.inner_text("#headline"))
    assert found
    return float(found[1]), float(found[2])


def findings(page: Page) -> list[tuple[str, list[str]]]:
    """Axe's violations, by rule, and where they are."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document).then(({ violations }) => violations)")
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def check_accessibility(page: Page) -> None:
    for scheme, forced in (("dark", "none"), ("light", "active"), ("light", "none")):
        page.emulate_media(color_scheme=scheme, forced_colors=forced)  # type: ignore[arg-type]
        assert findings(page) == []


@pytest.mark.servers
@pytest.mark.parametrize(
    ("width", "height", "narrower"), [(1440, 1000, 1024), (390, 844, 320)], ids=["desktop", "phone"]
)
def test_a_selection_beside_plain_reranking(
    opened: Open, demonstrated: Service, width: int, height: int, narrower: int
) -> None:
    """The answers are those of the API, and everybody can read them."""
    answer = selected(demonstrated, budget=40, k=20)
    ranking = selected(demonstrated, budget=0, k=40, depth=40)["documents"]
    ranking.sort(key=lambda document: document["retrieval_rank"])
    texts = [f"{document['title']} {document['text']}" for document in ranking]
    results = demonstrated.client.post("/rerank", json={"query": QUERY, "documents": texts}).json()["results"]
    plain = {ranking[result["index"]]["id"] for result in results[:20]}
    only = (set(ids(answer)) - plain, plain - set(ids(answer)))
    assert only[0]
    with opened(viewport={"width": width, "height": height}, script=NOTE_PROGRESS) as page:
        compared(page)  # a query of the demo, without a click
        boxes = [page.locator(name).bounding_box() for name in ("#headline", "#set", "#ranking", "#comparison")]
        places = [(box["y"], box["height"]) for box in boxes if box]
        assert places == sorted(places) and len(places) == 4 and sum(places[0]) < height
        check_accessibility(page)

        page.set_viewport_size({"width": narrower, "height": 640})
        ask(page, budget=40, k=20)
        page.click("#rest")
        assert titles(page) == ids(answer)
        assert page.inner_text("#compared .verdict").startswith(f"{20 - len(only[0])} documents of 20 in both")
        for details in page.locator("details").all():
            details.evaluate("details => (details.open = true)")
        assert tuple(set(titles(page, f"#differing .only:nth-of-type({n})")) for n in (1, 2)) == only
        assert outcome(page)[0] == pytest.approx(sum(each["relevance"] for each in answer["documents"]), abs=0.5)
        assert f"in {answer['usage']['rounds']} rounds among {answer['pool_size']}" in page.inner_text("#status")
        rounds = re.findall(r"^Round (\d+): \d+ calls? of 40 so far$", "\n".join(page.evaluate("seen")), re.MULTILINE)
        assert min(map(int, rounds)) == 1
        assert page.locator("#all-calls tbody tr").count() == 40
        expect(page.locator("#set .text").first).to_have_text(answer["documents"][0]["text"])
        for chart in ("ranking", "curve-chart"):
            is_painted = (
                "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
            )
            assert page.locator(f"#{chart} canvas").evaluate(is_painted)
        check_accessibility(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert f"{demonstrated.url}/playground" in demonstrated.log


@pytest.mark.strangers
@pytest.mark.parametrize("calibrated", [True, False])
def test_both_sets_are_compared_on_one_scale(opened: Open, tmp_path: Path, calibrated: bool) -> None:
    """The headline, the lists and the curve use the relevance of the answer, which need not be a score."""
    with service(tmp_path / "data") as running:
        fill(running)
        models = running.client.get("/v1/models").json()["data"][0]["id"]
        encoder = running.client.get(f"/indexes/{demo.INDEX}").json()["encoder"]
        made = Calibration(models, encoder, {"people": ProbabilityMap(0.5, 0.2, 1e-6)}, created=WHEN)
        if calibrated:
            LocalCatalog(tmp_path / "data" / "indexes").artifacts(demo.INDEX).change(calibration=made)
        answer = selected(running, budget=20, k=25, explain="pool")
        assert answer["relevance"] == "people" and answer["calibration"] == (WHEN if calibrated else None)
        believed = dict(zip(answer["pool"]["ids"], answer["pool"]["relevance"], strict=True))
        sums = tuple(sum(map(believed.__getitem__, each)) for each in (ids(answer), answer["pool"]["ids"][:25]))
        with opened(url=running.url) as page:
            ask(page, budget=20, k=25)
            assert outcome(page) == pytest.approx(sums, abs=0.051)
            assert f"{sums[0]:.1f} with BoundaryMORPH, {sums[1]:.1f} with plain" in page.inner_text("#curve-text")
            names, worths = titles(page, "#differing .only"), page.locator("#differing .worth").all_inner_texts()
            assert [believed[name] for name in names] == pytest.approx(list(map(float, worths)), abs=0.0051)


@pytest.mark.strangers
def test_plain_reranking_has_the_same_candidates(opened: Open, demonstrated: Service) -> None:
    wanted = {"kind": "class"}
    allowed = set(ids(selected(demonstrated, budget=0, k=10_000, filter=wanted)))
    with opened() as page:
        compared(page)
        sent = requests(page)
        ask(page, budget=5, k=8, filter=orjson.dumps(wanted).decode())
        assert set(titles(page, "#differing .only")) <= allowed
    assert [each["filter"] for each in sent] == [wanted] * len(sent) and len(sent) > 1


def test_pasted_documents(opened: Open) -> None:
    """They may hold HTML and any script, in each of the formats of the page."""
    arabic = "كيف يتحول النص إلى رقم في بايثون"
    lines = [
        {"id": 7, "title": "<b>bold</b>", "text": "<img src=nowhere onerror=alert(1)>"},
        {"_id": "own", "text": "plain"},
        {"text": arabic},
    ]
    with opened() as page:
        choose_the_example(page)
        search(page)
        assert "5 of 5 calls" in page.inner_text("#status") and "14 candidates" in page.inner_text("#status")
        page.fill("#query", "تحويل النص إلى رقم")
        page.fill("#documents", "\n".join(orjson.dumps(each).decode() for each in lines))
        search(page)
        directions = "elements => elements.map(each => [each.textContent, getComputedStyle(each).direction])"
        shown = dict(page.locator(f"#set {TITLE}, #query").evaluate_all(directions))
        assert shown == {"": "rtl", "<b>bold</b>": "ltr", "plain": "ltr", arabic: "rtl"}
        page.locator("#set summary", has_text="plain").click()
        expect(page.locator("#set .id")).to_have_text("own")
        expect(page.locator("#compared .verdict")).to_have_text("Both return the same 3 documents.")
        for two in ("[1] Smith on sleep\n{braces} in plain words", '{\n "text": "one"\n}\n{"text": "two"}'):
            page.fill("#documents", two)
            search(page)
            assert page.locator("#set > li").count() == 2


def test_the_example_shows_a_gain(opened: Open, tmp_path: Path) -> None:
    """With the embedded models, as a visitor has them."""
    with service(tmp_path / "data", embedded=True) as running, opened(url=running.url) as page:
        expect(page.locator("#no-index")).to_contain_text("There is no index yet")
        search(page)
        ours, plain = outcome(page)
        assert ours > 2 * plain


WRONG = [
    ("#query", "  ", "query: must have a character that is not white space"),
    ("[name=also]", QUERY, "two of the 'queries' are the same"),
    ("[name=filter]", "kind", "The filter is not JSON"),
    ("#documents", '[{"text": "never ends"', "The documents begin like a JSON array, but are none"),
    ("#documents", '{"text": "fine"}\n{"text": broken}', "Document 2 is not a JSON object"),
    ("#documents", '{"text": "fine"}\n{"title": "no text"}', 'Document 2 has no "text"'),
    ("#key", "ключ", "only ASCII characters"),
]


def test_mistakes_are_reported(opened: Open) -> None:
    with opened(refusals=True) as page:
        ask(page, budget=5, k=5)
        for field, value, complaint in WRONG:
            page.check("[value=pool]" if field == "#documents" else "[value=index]")
            right = page.input_value(field)
            page.fill(field, value)
            page.click("#go")
            expect(page.locator("#problem")).to_contain_text(complaint)
            page.fill(field, right)
        assert findings(page) == []


@pytest.mark.parametrize(
    ("found", "answered", "words"),
    [
        (rb"event: selection(?s:.*)", b"", "The connection broke during the answer"),
        (b'"status":"complete"', b'"status":"retrieval_only"', "Retrieval only: nothing was scored"),
        (b'"warnings":\\[\\]', b'"warnings":["Nothing was scored."]', "Nothing was scored."),
    ],
)
def test_an_answer_that_is_not_whole(opened: Open, found: bytes, answered: bytes, words: str) -> None:
    def answer(route: Route) -> None:
        body = route.fetch().body()
        assert re.search(found, body)
        route.fulfill(content_type="text/event-stream", body=re.sub(found, answered, body))

    with opened() as page:
        ask(page)
        page.route("**/select", answer, times=1)
        page.click("#go")
        expect(page.locator("#problem, #status, #warnings").filter(has_text=words)).to_be_visible()
        assert page.locator("#answer").is_visible() == bool(answered)


def test_calls_that_cost_money_are_made_on_demand(opened: Open) -> None:
    """The comparison has a button, and the sliders ask for nothing."""

    def answer(route: Route) -> None:
        fetched = route.fetch()
        tokens = '"language_model":{"input_tokens":12345,"output_tokens":40}'
        route.fulfill(response=fetched, body=fetched.text().replace('"language_model":null', tokens))

    with opened() as page:
        compared(page)
        page.route("**/select", answer)
        sent = requests(page)
        page.fill("#budget", "20")
        page.click("#go")
        expect(page.locator("#status")).to_contain_text("read 12,345 tokens and wrote 40")
        page.locator("[data-of=budget]").press("ArrowRight")
        page.wait_for_timeout(500)  # longer than a slider waits
        assert len(sent) == 1
        expect(page.locator("#stale")).to_be_visible()
        page.click("text=Rerank, for 20 calls more at most")
        compared(page)
        assert len(sent) == 3


@pytest.mark.strangers
def test_an_edit_makes_one_request(opened: Open, demonstrated: Service) -> None:
    """No request uses or fills the memory of scores, and the last of several counts."""
    with opened() as page:
        compared(page)
        sent = requests(page)
        page.locator("[data-of=k]").press("ArrowRight")
        expect(page.locator("#rest")).to_have_text("Show the other 43")
        compared(page)
        page.fill("#budget", "33")
        page.press("#budget", "Enter")
        expect(page.locator("#status")).to_contain_text("33 of 33 calls")
        page.wait_for_timeout(400)  # longer than a slider waits
        compared(page)
        page.locator("#tries button").nth(1).click()
        expect(page.locator("#query")).to_have_value(page.locator("#tries button").nth(1).inner_text())
        compared(page)
        assert [(each["budget"], each["k"]) for each in sent if "explain" in each] == [(50, 55), (33, 55), (33, 55)]
        page.fill("#query", QUERY)
        late: list[Route] = []
        page.route("**/select", lambda route: late.append(route), times=1)
        for budget in (30, 35, 40):
            page.fill("#budget", str(budget))
            page.click("#go")
        expect(page.locator("#status")).to_contain_text("40 of 40 calls")
        compared(page)
        late[0].continue_()
        page.wait_for_timeout(400)
        compared(page)
        page.click("#rest")
        assert titles(page) == ids(selected(demonstrated, budget=40, k=55))
    assert all(each["reuse"] is False for each in sent)


@pytest.mark.strangers
def test_an_answer_to_other_settings_is_marked(opened: Open) -> None:
    """It is dimmed while another one is awaited, and stays if that is cancelled."""
    with opened() as page:
        compared(page)
        stale, headline = page.locator("#stale"), page.inner_text("#headline")
        show_options(page)
        page.select_option("[name=method]", "boundarymorph")
        expect(stale).to_be_visible()
        page.select_option("[name=method]", "")
        expect(stale).to_be_hidden()
        page.check("[value=pool]")
        expect(stale).to_be_visible()
        page.check("[value=index]")
        page.fill("#query", "round a number")
        page.route("**/select", lambda route: None, times=1)  # which never answers
        page.click("#go")
        expect(page.locator("#answer")).to_have_css("opacity", "0.45")
        page.press("#cancel", "Enter")
        expect(page.locator("#go")).to_be_focused()
        expect(page.locator("#progress")).to_contain_text("Cancelled")
        assert page.inner_text("#headline") == headline and not page.locator("#cancel").is_visible()
        search(page)
        expect(stale).to_be_hidden()


@pytest.mark.strangers
@pytest.mark.parametrize("failing", ["select", "indexes"])
def test_page_waits_until_the_service_is_ready(opened: Open, demonstrated: Service, failing: str) -> None:
    """It asks again after the seconds of Retry-After."""
    problem = {"type": "urn:boundarymorph:problem:not-ready", "title": "Not ready", "status": 503}
    body = orjson.dumps({**problem, "detail": "the models are warming up; try again in a second"})
    headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
    with opened("/docs", refusals=True) as page:
        page.route(f"**/{failing}", lambda route: route.fulfill(status=503, headers=headers, body=body), times=2)
        page.goto(f"{demonstrated.url}/playground")
        expect(page.get_by_text("The models are warming up …").first).to_be_visible()
        expect(page.locator("#problem")).to_be_empty()
        compared(page)
        assert outcome(page)


def test_a_key(opened: Open, tmp_path: Path) -> None:
    secret, key = callers.make_key("reader", [callers.Scope.SELECT])
    with (
        service(tmp_path / "data", environment={"BOUNDARYMORPH_KEYS": str(key)}) as running,
        opened("/playground?query=sleep", url=running.url, refusals=True) as page,
    ):
        expect(page.locator("#no-index")).to_contain_text("API key")
        expect(page.locator("#key")).to_be_focused()
        assert page.input_value("#query") == "sleep"
        choose_the_example(page)
        page.click("#go")
        expect(page.locator("#problem .note")).to_be_visible()
        page.fill("#key", "not-the-key")
        page.press("#key", "Tab")
        expect(page.locator("#no-index")).to_have_text("The service does not know this key: paste it again.")
        page.fill("#key", secret)
        search(page)
        for code in snippets(page):
            assert "BOUNDARYMORPH_API_KEY" in code and secret not in code


def snippets(page: Page) -> Iterator[str]:
    for language in LANGUAGES:
        page.click(f"#tab-{language}")
        yield page.inner_text("#code")


def test_code_makes_the_same_request(opened: Open, tmp_path: Path) -> None:
    with opened() as page:
        ask(page, "don't round 'half' up", budget=10, k=5)
        shown = titles(page)
        curl, python, script = snippets(page)
    assert ids(orjson.loads(printed("bash", "-c", curl))) == shown
    for command in ((sys.executable, "-c", python), typescript(script, tmp_path)):
        assert [line.split()[1] for line in printed(*command).splitlines()] == shown


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_focus_is_not_lost(opened: Open) -> None:
    """The page can be used by keyboard alone."""
    with opened() as page:
        compared(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        ask(page, budget=5, k=130)
        page.focus("#query")
        page.keyboard.press("Enter")
        compared(page)
        assert page.locator("#set > li").count() == 12
        page.press("#rest", "Enter")
        assert page.locator("#set > li").count() == 130
        expect(page.locator("#set summary").nth(12)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#set .why")).to_be_visible()
        page.press("#tab-curl", "ArrowRight")
        assert page.inner_text("#code").startswith("from boundarymorph_client import Client")


@pytest.mark.parametrize(("also", "wrong", "value"), [("sleep", "distinct", "text"), ("", "depth", "99999")])
def test_an_invalid_option_is_shown_and_not_sent(opened: Open, also: str, wrong: str, value: str) -> None:
    """Some options do not go with further queries. An option that is hidden is not in the way."""
    with opened() as page:
        compared(page)
        sent = requests(page)
        show_options(page)
        field = page.locator(f"[name={wrong}]")
        page.fill("[name=also]", also)
        field.fill(value)
        page.evaluate("document.querySelector('.more').open = false")
        page.click("#go")
        expect(field).to_be_focused()
        assert sent == [] and field.is_visible()
        assert not also or "does not go with further queries" in field.evaluate("field => field.validationMessage")
        page.fill("[name=also]", "")
        if also:
            field.fill("")
        else:
            choose_the_example(page)
        search(page)


def test_a_mark_of_the_chart_is_explained(opened: Open) -> None:
    """It can be tapped, which no movement comes before, or pointed at."""
    with opened(has_touch=True, viewport={"width": 390, "height": 844}) as page:
        ask(page, budget=20, k=12)
        note = page.locator("#ranking .note-at")
        page.locator("#ranking").scroll_into_view_if_needed()
        box = page.locator("#ranking .u-over").bounding_box()
        assert box is not None
        places = ((box["x"] + 8 * right, box["y"] + 8 * down) for right in range(40) for down in range(12))
        for place in places:
            page.touchscreen.tap(*place)
            if note.is_visible():
                break
        words = note.inner_text()
        assert re.search(r"\nrank \d+ · [01]\.\d\d( · read in round \d| ± 0\.\d\d · not read)( · in the set)?$", words)
        page.locator("#ranking-title").tap()
        assert not note.is_visible()
        page.mouse.move(*place)
        expect(note).to_be_visible()
        assert note.inner_text() == words


@pytest.mark.strangers
def test_a_link_asks_the_same_and_shows_its_options(opened: Open, demonstrated: Service) -> None:
    wanted = {"k": 12, "budget": "auto", "hybrid": True, "distinct": "kind", "depth": 400, "method": "boundarymorph"}
    with opened("/playground?k=12") as page:
        compared(page)  # of the demo's query
        sent = requests(page)
        show_options(page)
        page.select_option("[name=method]", "boundarymorph")
        page.fill("[name=depth]", "400")
        page.fill("[name=distinct]", "kind")
        page.fill("[name=filter]", '{"kind": {"ne": "class"}}')
        page.check("[name=hybrid]")
        page.check("[name=auto]")
        search(page)
        assert sent[0].items() >= {**wanted, "filter": {"kind": {"ne": "class"}}}.items()
        assert titles(page) == ids(demonstrated.select(**sent[0]))
        link = page.url.removeprefix(demonstrated.url)
    with opened("/docs") as page:
        again = requests(page)
        page.goto(demonstrated.url + link)
        compared(page)
        assert page.locator(".more[open] summary").inner_text() == "More options (6 set)"
        assert page.is_disabled("#budget") and page.url.endswith(link)
    assert again[0] == sent[0]


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("index=nope", "There is no index 'nope' here."),
        ("index=own", "The index 'own' needs vectors of queries, which this page cannot make."),
        ("method=nope", "There is no method 'nope' here."),
        ("budget=nope", "There is no budget 'nope' here."),
    ],
)
def test_a_link_that_cannot_be_followed_asks_nothing(
    opened: Open, demonstrated: Service, link: str, complaint: str
) -> None:
    assert demonstrated.client.put("/indexes/own", json={"dimension": 4}).is_success
    with opened("/docs") as page:
        sent = requests(page)
        page.goto(f"{demonstrated.url}/playground?query=numbers&{link}")
        expect(page.locator("#problem")).to_contain_text(complaint)
        assert page.input_value("#query") == "numbers" and not page.locator("#answer").is_visible()
    assert demonstrated.client.delete("/indexes/own").is_success
    assert sent == []


@pytest.mark.strangers
def test_back_leaves_pasted_documents_and_options(opened: Open) -> None:
    """The address has no documents, nor has the answer to it."""
    with opened() as page:
        compared(page)
        ask(page, "round a number", filter='{"kind": "function"}')
        choose_the_example(page)
        search(page)
        assert "source=pool" in page.url and "index=" not in page.url
        for query, filter in (("round a number", '{"kind": "function"}'), (QUERY, "")):
            page.go_back()
            expect(page.locator("#query")).to_have_value(query)
            compared(page)
            assert page.input_value("[name=filter]") == filter
            expect(page.locator("#index")).to_be_visible()
            expect(page.locator("#status")).to_contain_text("50 of 50 calls")


@pytest.mark.strangers
def test_title_of_a_long_document_is_short(opened: Open) -> None:
    """Wherever it is named. A character beyond U+FFFF is not cut in half."""
    with opened() as page:
        page.check("[value=pool]")
        page.fill("#documents", "\n".join(f"{number} {'😀' * 200} convert a string" for number in range(20)))
        page.fill("#budget", "6")
        search(page)
        page.evaluate("document.querySelector('#all-calls').open = true")
        shown = titles(page)
        assert {len(title) for title in shown} == {80} and {title[-1] for title in shown} == {"…"}
        assert max(map(len, page.locator("#all-calls td").all_inner_texts())) < 200


def test_several_queries(opened: Open, demonstrated: Service) -> None:
    """The address holds them, and the page leaves out the charts of a single query."""
    queries = [QUERY, "read and write archives", "days of a month"]
    with opened("/playground?k=12&budget=20") as page:
        ask(page)
        page.fill("[name=also]", "\n".join(queries[1:]) + "\n\n")
        page.click("#go")
        expect(page.locator("#outcome")).to_contain_text(f"“{queries[1]}”")
        page.reload()
        answer = selected(demonstrated, query=None, queries=queries, budget=20, k=12)
        for place, query in enumerate(queries):
            count = sum(document["query"] == place for document in answer["documents"])
            expect(page.locator("#outcome")).to_contain_text(f"“{query}” {count}")
        assert titles(page) == ids(answer)
        for hidden in ("#ranking", "#curve", "#comparison"):
            assert not page.locator(hidden).is_visible()
        page.locator("#set summary").first.click()
        expect(page.locator("#set .why").first).to_contain_text(f"“{queries[answer['documents'][0]['query']]}”")
        page.evaluate("document.querySelector('#all-calls').open = true")
        asked = page.locator("#all-calls td:nth-child(6)").all_inner_texts()
        assert len(asked) == 20 and set(asked) == set(queries)
        assert findings(page) == []
        page.click("#tab-Python")
        assert queries[1] in page.inner_text("#code")
        compile(page.inner_text("#code"), "snippet", "exec")
        ask(page, also="")
        assert page.locator("#ranking").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_description_of_the_api(opened: Open, scheme: str) -> None:
    with opened("/docs", color_scheme=scheme) as page:
        expect(page.locator(".opblock-summary-path").first).to_be_visible()
        with Image.open(BytesIO(page.screenshot())) as seen:
            brightness = np.asarray(seen.convert("L")).mean()
        assert (brightness < 100) if scheme == "dark" else (brightness > 200)
        url = page.url.removesuffix("/docs")
        assert page.locator(".servers option").all_inner_texts() == [url]
        link = page.get_by_role("link", name="Try it in the playground")
        assert link.get_attribute("href") == f"{url}/playground"
        assert page.locator("main").count() == 1 and not page.locator("section.models").count()
        names = page.locator(".opblock-summary-description").all_inner_texts()
        assert len(set(names)) == len(names)
        page.locator(".opblock-summary", has_text="/select").first.click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


@pytest.mark.strangers
def test_of_other_indexes_nothing_is_asked_at_first_sight(opened: Open, tmp_path: Path) -> None:
    """One that is not empty is chosen. Enter in the field of the key leaves the page where it is."""
    with service(tmp_path / "data") as running:
        assert running.client.put("/indexes/ants").is_success
        running.fill("bees", [{"id": "1", "text": "bees"}])
        with opened(url=running.url) as page:
            expect(page.locator("#index option")).to_have_count(2)
            assert page.input_value("#index") == "bees" and page.input_value("#query") == ""
            page.fill("#key", "any")
            page.press("#key", "Enter")
            assert page.url.endswith("/playground") and page.input_value("#key") == "any"
