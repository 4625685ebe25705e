"""The pages, as somebody uses them.

No test here is a coroutine: while the browser runs, Playwright has an event loop of its own in this thread.
"""

from __future__ import annotations

import re
import subprocess
import sys
from io import BytesIO
from itertools import accumulate
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
from tests.system.service import Service, scorer, service
from tests.web.conftest import NODE_MODULES, Open, fill

WHEN = "2026-11-28T10:00:00+00:00"
QUERY = "convert a string to a number"
AXE = (NODE_MODULES / "axe-core" / "axe.min.js").read_text()
TITLE = "summary .title"


def ask(page: Page, query: str = QUERY, **fields: object) -> None:
    """Fill in the form and wait for selection and comparison."""
    expect(page.locator("#index option")).to_have_count(1)
    page.evaluate("document.querySelector('.more').open = true")
    for name, value in {"query": query, **fields}.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#go")
    compared(page)


def compared(page: Page) -> None:
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#compared .verdict")).to_be_visible()
    expect(page.locator("#problem")).to_be_empty()


def selected(running: Service, **request: Any) -> dict[str, Any]:
    """What the API answers to a request that is like the page's."""
    wanted = {"query": QUERY, "index": demo.INDEX, "reuse": False, "return_documents": True, **request}
    return running.select(**wanted)


def ask_the_example(page: Page) -> None:
    page.check("[value=pool]")
    page.click("#example")
    page.click("#go")


def requests(page: Page) -> list[dict[str, Any]]:
    """What the page asks from now on; the list grows."""
    sent: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/select"):
            sent.append(orjson.loads(request.post_data or ""))

    page.on("request", note)
    return sent


def outcome(page: Page) -> tuple[float, float]:
    """The total relevance of the headline, and what plain reranking reaches."""
    found = re.search(r"a total relevance of ([\d.]+) against ([\d.]+)$", page.inner_text("#headline"))
    assert found
    return float(found[1]), float(found[2])


def ids(answer: dict[str, Any]) -> list[str]:
    return [document["id"] for document in answer["documents"]]


def picture(page: Page, chart: str) -> str:
    """What is painted on a chart, which is not blank."""
    is_blank = """canvas => {
        const blank = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
        return canvas.toDataURL() === blank.toDataURL();
    }"""
    canvas = page.locator(f"#{chart} canvas")
    assert not canvas.evaluate(is_blank)
    painted: str = canvas.evaluate("c => c.toDataURL()")
    return painted


def findings(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds, by rule, and where."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document).then(({ violations }) => violations)")
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]


@pytest.mark.servers
def test_a_selection(opened: Open, demonstrated: Service) -> None:
    with opened() as page:
        ask(page, budget=20, k=12)
        answer = selected(demonstrated, budget=20, k=12)
        assert page.locator(f"#set {TITLE}").all_inner_texts() == ids(answer)
        scored = sum(document["source"] == "cross_encoder" for document in answer["documents"])
        assert f"{scored} read by the scorer, {12 - scored} chosen because" in page.inner_text("#outcome")
        found = sum(document["relevance"] for document in answer["documents"])
        assert outcome(page)[0] == pytest.approx(found, abs=0.5)  # it knows the scores of plain reranking, too
        assert page.inner_text("#comparison-title") == "The same 20 scores, spent on the first 20"
        assert "20 calls" in page.inner_text("#curve-text") and picture(page, "curve-chart")
        assert "20 of 20 calls" in page.inner_text("#status")
        assert f"in {answer['usage']['rounds']} rounds among {answer['pool_size']} candidates" in page.inner_text(
            "#status"
        )
        assert page.locator("#all-calls tbody tr").count() == 20
        assert picture(page, "ranking")
        lowest = min(document["relevance"] for document in answer["documents"])
        assert f"12 are in the set, at a relevance of {lowest:.2f} or more" in page.inner_text("#ranking-text")

        page.locator("#set summary").first.click()
        expect(page.locator("#set .text").first).to_have_text(answer["documents"][0]["text"])
        assert re.match(
            r"Scored 0\.\d+ in round \d+: |The scorer has not read it\. ", page.locator("#set .why").first.inner_text()
        )


@pytest.mark.parametrize(("budget", "k"), [(10, 25), (40, 10)])
def test_comparison(opened: Open, demonstrated: Service, budget: int, k: int) -> None:
    """Beside what the rerank route makes of the same first documents."""
    depth = max(budget, k)
    ranking = selected(demonstrated, budget=0, k=depth, depth=depth)["documents"]
    ranking.sort(key=lambda document: document["retrieval_rank"])
    assert [document["retrieval_rank"] for document in ranking] == list(range(1, depth + 1))
    texts = [f"{document['title']} {document['text']}" for document in ranking[:budget]]
    results = demonstrated.client.post("/rerank", json={"query": QUERY, "documents": texts}).json()["results"]
    reranked = [ranking[result["index"]] for result in results]
    plain = [document["id"] for document in (*reranked, *ranking[budget:])][:k]
    chosen = ids(selected(demonstrated, budget=budget, k=k))
    only = [id for id in chosen if id not in plain], [id for id in plain if id not in chosen]
    assert only[0]
    with opened() as page:
        ask(page, budget=budget, k=k)
        assert page.inner_text("#compared .verdict").startswith(f"{k - len(only[0])} documents of {k} in both")
        for shown, expected in zip(page.locator("#differing .only").all(), only, strict=True):
            shown.evaluate("list => (list.open = true)")
            assert sorted(shown.locator(TITLE).all_inner_texts()) == sorted(expected)
            worth = list(map(float, shown.locator(".worth").all_inner_texts()))
            assert worth == sorted(worth, reverse=True)


@pytest.mark.strangers
@pytest.mark.parametrize("calibrated", [True, False])
def test_what_is_no_score_is_compared_on_one_scale(opened: Open, tmp_path: Path, calibrated: bool) -> None:
    """Headline, lists and curve hold both sets against the relevance of the answer."""
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
        chosen, plain = ids(answer), answer["pool"]["ids"][:25]  # which has more places than calls
        sums = tuple(sum(believed[id] for id in each) for each in (chosen, plain))
        with opened(url=running.url) as page:
            ask(page, budget=20, k=25)
            assert outcome(page) == pytest.approx(sums, abs=0.051)
            assert f"{sums[0]:.1f} with BoundaryMORPH, {sums[1]:.1f} with plain" in page.inner_text("#curve-text")
            rows = page.locator("#differing .only li")
            for title, worth in zip(
                rows.locator(".title").all_inner_texts(), rows.locator(".worth").all_inner_texts(), strict=True
            ):
                assert float(worth) == pytest.approx(believed[title], abs=0.0051)


@pytest.mark.strangers
def test_plain_reranking_has_the_same_candidates(opened: Open, demonstrated: Service) -> None:
    """Those that the filter lets through."""
    wanted = {"kind": "class"}
    plain = selected(demonstrated, budget=0, k=10_000, filter=wanted)["documents"]
    assert plain
    allowed = {document["id"] for document in plain}
    with opened() as page:
        ask(page, budget=5, k=8, filter=orjson.dumps(wanted).decode())
        assert set(page.locator(f"#differing .only {TITLE}").all_inner_texts()) <= allowed
        with page.expect_request(lambda request: "explain" not in (request.post_data or "explain")) as sent:
            page.click("#go")
        compared(page)
    assert orjson.loads(sent.value.post_data or "")["filter"] == wanted


def test_documents_of_ones_own(opened: Open) -> None:
    with opened() as page:
        ask_the_example(page)
        compared(page)
        assert page.locator("#set > li").count() == 5
        assert "5 of 5 calls" in page.inner_text("#status") and "14 candidates" in page.inner_text("#status")
        assert page.locator("#example").is_disabled()

        lines = [
            '{"id": 7, "title": "<b>bold</b>", "text": "<img src=nowhere onerror=alert(1)>"}',
            '{"_id": "own", "text": "plain"}',
        ]
        page.fill("#documents", "\n".join(lines))
        page.click("#go")
        expect(page.locator("#set > li")).to_have_count(2)
        assert set(page.locator(f"#set {TITLE}").all_inner_texts()) == {"<b>bold</b>", "plain"}
        page.locator("#set summary", has_text="plain").click()
        expect(page.locator("#set .id")).to_have_text("own")
        expect(page.locator("#compared .verdict")).to_have_text("Both return the same 2 documents.")
        for two in ("[1] Smith on sleep\n{braces} in plain words", '{\n "text": "one"\n}\n{"text": "two"}'):
            page.fill("#documents", two)
            page.click("#go")
            compared(page)
            assert page.locator("#set > li").count() == 2


def test_the_example_shows_a_gain(opened: Open, tmp_path: Path) -> None:
    """With the embedded models, as a visitor has them."""
    with service(tmp_path / "data", embedded=True) as running, opened(url=running.url) as page:
        expect(page.locator("#no-index")).to_contain_text("There is no index yet")
        page.click("#go")
        compared(page)
        ours, plain = outcome(page)
        assert ours > 2 * plain


WRONG = [  # what is filled in, and what the page says of it
    ("#query", "  ", "query: must have a character that is not white space"),
    ("[name=also]", QUERY, "two of the 'queries' are the same"),
    ("[name=filter]", "kind", "The filter is not JSON"),
]
WRONG_AT_LAST = [  # nothing is asked afterwards
    ("#key", "ключ", "only ASCII characters"),
    ("#documents", '[{"text": "never ends"', "The documents begin like a JSON array, but are none"),
    ("#documents", '{"text": "fine"}\n{"text": broken}', "Document 2 is not a JSON object"),
    ("#documents", '{"text": "fine"}\n{"title": "no text"}', 'Document 2 has no "text"'),
]


def test_what_is_wrong_is_said(opened: Open) -> None:
    with opened(refusals=True) as page:
        ask(page, budget=5, k=5)
        problem = page.locator("#problem")
        for field, value, said in WRONG:
            right = page.input_value(field)
            page.fill(field, value)
            page.click("#go")
            expect(problem).to_contain_text(said)
            assert "pattern" not in page.inner_text("#problem")
            assert findings(page) == []
            page.fill(field, right)
        page.click("#go")
        compared(page)
        for field, value, said in WRONG_AT_LAST:
            if field == "#documents":
                page.check("[value=pool]")
            page.fill(field, value)
            page.click("#go")
            expect(problem).to_contain_text(said)


def test_an_answer_that_breaks_off(opened: Open) -> None:
    """As where the service dies meanwhile."""

    def half(route: Route) -> None:
        body = route.fetch().body()
        route.fulfill(content_type="text/event-stream", body=body[: len(body) // 2])

    with opened() as page:
        ask(page)
        page.route("**/select", half)
        page.click("#go")
        expect(page.locator("#problem")).to_contain_text("The connection broke during the answer")
        assert not page.locator("#answer").is_visible()


def test_calls_that_cost_money(opened: Open) -> None:
    """Those of the comparison are made when somebody wants them, and sliders make none. Its tokens are put in here."""
    asked = 0

    def asking(route: Route) -> None:
        nonlocal asked
        asked += 1
        answer = route.fetch()
        tokens = '"language_model":{"input_tokens":12345,"output_tokens":40}'
        route.fulfill(response=answer, body=answer.text().replace('"language_model":null', tokens))

    with opened() as page:
        compared(page)
        page.route("**/select", asking)
        page.fill("#budget", "20")
        page.click("#go")
        expect(page.locator("#status")).to_contain_text("read 12,345 tokens and wrote 40")
        page.locator("[data-of=budget]").press("ArrowRight")
        page.wait_for_timeout(500)
        assert asked == 1
        expect(page.locator("#stale")).to_be_visible()
        page.click("text=Rerank, for 20 calls more at most")
        compared(page)
        assert asked == 3


@pytest.mark.strangers
def test_sliders_ask_once_from_the_first_answer_on(opened: Open) -> None:
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
    assert [(each["budget"], each["k"]) for each in sent if "explain" in each] == [(50, 55), (33, 55)]


@pytest.mark.strangers
def test_page_neither_uses_nor_teaches_a_memory(opened: Open) -> None:
    """Neither by its question nor by plain reranking."""
    with opened() as page:
        compared(page)
        sent = requests(page)
        ask(page, "round a number", budget=60, k=70)
    assert len(sent) == 3
    assert all(each["reuse"] is False for each in sent)


@pytest.mark.strangers
def test_answer_says_that_the_settings_have_changed(opened: Open) -> None:
    with opened() as page:
        compared(page)
        stale = page.locator("#stale")
        page.evaluate("document.querySelector('.more').open = true")
        page.select_option("[name=method]", "boundarymorph")
        expect(stale).to_be_visible()
        page.select_option("[name=method]", "")
        expect(stale).to_be_hidden()
        page.check("[value=pool]")
        expect(stale).to_be_visible()
        page.check("[value=index]")
        page.fill("#query", "round a number")
        page.click("#go")
        compared(page)
        expect(stale).to_be_hidden()


@pytest.mark.strangers
@pytest.mark.parametrize("failing", ["select", "indexes"])
def test_page_waits_until_the_service_is_ready(opened: Open, demonstrated: Service, failing: str) -> None:
    problem = {"type": "urn:boundarymorph:problem:not-ready", "title": "Not ready", "status": 503}
    problem["detail"] = "the models are warming up; try again in a second"
    refused = 0

    def warming(route: Route) -> None:
        nonlocal refused
        refused += 1
        if refused > 2:
            return route.continue_()
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        route.fulfill(status=503, headers=headers, body=orjson.dumps(problem))

    with opened("/docs", refusals=True) as page:
        page.route(f"**/{failing}", warming)
        page.goto(f"{demonstrated.url}/playground")
        expect(page.get_by_text("The models are warming up …").first).to_be_visible()
        expect(page.locator("#problem")).to_be_empty()
        compared(page)
        assert outcome(page)


def test_asking_again(opened: Open, demonstrated: Service) -> None:
    """When the slider of the budget rests, and before the answer: then the last question counts."""
    with opened() as page:
        ask(page, budget=20, k=12)
        page.locator("[data-of=budget]").press("ArrowRight")
        assert page.input_value("#budget") == "25"
        expect(page.locator("#status")).to_contain_text("25 of 25 calls")
        compared(page)
        for budget in (30, 35, 40):
            page.fill("#budget", str(budget))
            page.click("#go")
        expect(page.locator("#status")).to_contain_text("40 of 40 calls")
        compared(page)
        assert page.locator(f"#set {TITLE}").all_inner_texts() == ids(selected(demonstrated, budget=40, k=12))


def test_a_scorer_that_is_away(opened: Open, tmp_path: Path) -> None:
    """The answer is shown as what it is."""
    with (
        scorer(tmp_path / "scorer.log") as away,
        service(tmp_path / "data", "--scorer-url", away.url) as running,
        opened(url=running.url) as page,
    ):
        away.process.kill()
        expect(page.locator("#no-index")).to_contain_text("There is no index yet")
        page.click("#go")
        expect(page.locator("#status")).to_contain_text("Retrieval only: nothing was scored")
        expect(page.locator("#warnings")).to_contain_text("nothing was scored")
        assert findings(page) == []
        assert page.locator("#set > li").count() == 5


def test_a_key(opened: Open, tmp_path: Path) -> None:
    secret, key = callers.make_key("reader", [callers.Scope.SELECT])
    with (
        service(tmp_path / "data", environment={"BOUNDARYMORPH_KEYS": str(key)}) as running,
        opened("/playground?query=sleep", url=running.url, refusals=True) as page,
    ):
        expect(page.locator("#no-index")).to_contain_text("API key")
        expect(page.locator("#key")).to_be_focused()
        assert page.input_value("#query") == "sleep"
        ask_the_example(page)
        expect(page.locator("#problem .note")).to_be_visible()
        page.fill("#key", "not-the-key")
        page.press("#key", "Tab")
        expect(page.locator("#no-index")).to_have_text("The service does not know this key: paste it again.")
        page.fill("#key", secret)
        page.click("#go")
        compared(page)
        for language in ("curl", "Python", "TypeScript"):
            page.click(f"#tab-{language}")
            code = page.inner_text("#code")
            assert "BOUNDARYMORPH_API_KEY" in code and secret not in code


def test_the_same_request(opened: Open, demonstrated: Service, tmp_path: Path) -> None:
    """As code, which chooses what the page shows."""
    code = {}
    with opened() as page:
        ask(page, "don't round 'half' up", budget=10, k=5)
        shown = page.locator(f"#set {TITLE}").all_inner_texts()
        for language in ("curl", "Python", "TypeScript"):
            page.click(f"#tab-{language}")
            code[language] = page.inner_text("#code")
    answer = orjson.loads(printed("bash", "-c", code["curl"]))
    assert [document["id"] for document in answer["documents"]] == shown
    for command in ((sys.executable, "-c", code["Python"]), typescript(code["TypeScript"], tmp_path)):
        assert [line.split()[1] for line in printed(*command).splitlines()] == shown


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


LOOKS: list[dict[str, Any]] = [
    {"color_scheme": "light", "viewport": {"width": 1440, "height": 1000}},
    {"color_scheme": "dark", "viewport": {"width": 1024, "height": 768}},
    {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}},
    {"forced_colors": "active", "viewport": {"width": 1024, "height": 768}},
]


@pytest.mark.parametrize("look", LOOKS, ids=["light", "dark", "phone", "small", "forced-colours"])
def test_for_everybody(opened: Open, look: dict[str, Any]) -> None:
    """axe finds nothing, at first sight and with everything open, and nothing is wider than the screen."""
    with opened(**look) as page:
        compared(page)
        assert findings(page) == []
        ask(page, budget=20, k=12)
        for details in page.locator("details").all():
            details.evaluate("details => (details.open = true)")
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_by_keyboard(opened: Open) -> None:
    with opened() as page:
        expect(page.locator("#index option")).to_have_count(1)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.focus("#query")
        page.keyboard.press("Enter")
        compared(page)
        page.focus("#set summary")
        page.keyboard.press("Enter")
        expect(page.locator("#set .why").first).to_be_visible()
        page.focus("#tab-curl")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#code").startswith("from boundarymorph_client import Client")


def test_each_round_is_told(opened: Open, demonstrated: Service) -> None:
    rounds = selected(demonstrated, budget=20, k=12, explain=True)["rounds"]
    note = """
        window.seen = [];
        addEventListener("DOMContentLoaded", () => {
            const progress = document.querySelector("#progress");
            new MutationObserver(() => seen.push(progress.textContent)).observe(progress, { childList: true });
        });
    """
    with opened(script=note) as page:
        ask(page, budget=20, k=12)
        seen = page.evaluate("seen")
        for made, calls in enumerate(accumulate(len(each["calls"]) for each in rounds[:-1]), start=2):
            assert any(
                each.startswith(f"Round {made}: {calls} call") and each.endswith("of 20 so far") for each in seen
            )


def test_what_a_mark_is(opened: Open) -> None:
    """Said under the pointer, which passes over the chart."""
    sweep = """chart => {
        const { left, top, width, height } = chart.getBoundingClientRect();
        const said = new Set();
        for (let x = 0; x < width; x += 10) {
            for (let y = 0; y < height; y += 10) {
                chart.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
                const note = chart.querySelector(".note-at");
                if (!note.hidden) said.add(note.textContent);
            }
        }
        return [...said];
    }"""
    with opened() as page:
        ask(page, budget=20, k=12)
        said = [note.split("\n") for note in page.locator("#ranking").evaluate(sweep)]
        names = page.locator(f"#set {TITLE}").all_inner_texts()
        assert len(said) > 12
        assert {name for name, facts in said if facts.endswith("in the set")} <= set(names)
        assert any(re.fullmatch(r"rank \d+ · [01]\.\d\d · read in round \d · in the set", facts) for _, facts in said)
        assert any(re.fullmatch(r"rank \d+ · [01]\.\d\d ± 0\.\d\d · not read · in the set", facts) for _, facts in said)


def test_what_a_mark_is_by_touch(opened: Open) -> None:
    """A finger taps, and does not move before it does."""
    with opened(has_touch=True, viewport={"width": 390, "height": 844}) as page:
        ask(page, budget=20, k=12)
        note = page.locator("#ranking .note-at")
        assert not note.is_visible()
        page.locator("#ranking").scroll_into_view_if_needed()
        box = page.locator("#ranking .u-over").bounding_box()
        assert box is not None
        title = page.locator(f"#set {TITLE}").first.inner_text()
        for down in range(0, int(box["height"]), 8):
            for right in range(0, int(box["width"]), 8):
                page.touchscreen.tap(box["x"] + right, box["y"] + down)
                if note.is_visible() and note.inner_text().startswith(title):
                    page.locator("#ranking-title").tap()
                    assert not note.is_visible()
                    return
        pytest.fail("no tap has shown the best document")


def test_the_index_that_is_chosen_is_not_empty(opened: Open) -> None:
    """Even if another one is first by name, and none is the demo's."""

    def renamed(route: Route) -> None:
        listed = route.fetch().json()
        (index,) = listed["indexes"]
        listed["indexes"] = [{**index, "name": "ants", "count": 0}, {**index, "name": "bees"}]
        route.fulfill(json=listed)

    with opened() as page:
        page.route("**/indexes", renamed)
        page.goto(page.url.partition("?")[0])
        expect(page.locator("#index option")).to_have_count(2)
        assert page.input_value("#index") == "bees"


def test_options(opened: Open, demonstrated: Service) -> None:
    """Reach the service as they are, and its answer is shown."""
    wanted = {"budget": "auto", "hybrid": True, "filter": {"kind": "function"}, "distinct": "kind"}
    with opened("/playground?k=12") as page:
        ask(page)
        page.check("[name=hybrid]")
        page.check("[name=auto]")
        page.fill("[name=filter]", '{"kind": "function"}')
        page.fill("[name=distinct]", "kind")
        with page.expect_request("**/select") as sent:
            page.click("#go")
        assert orjson.loads(sent.value.post_data or "").items() >= wanted.items()
        expect(page.locator("#set > li")).to_have_count(1)
        compared(page)
        assert page.locator(f"#set {TITLE}").all_inner_texts() == ids(selected(demonstrated, k=12, **wanted))


def test_a_script_from_right_to_left(opened: Open) -> None:
    with opened() as page:
        page.check("[value=pool]")
        query, document = "تحويل النص إلى رقم", "كيف يتحول النص إلى رقم في بايثون"
        page.fill("#query", query)
        page.fill("#documents", f"{document}\nA text in English")
        page.click("#go")
        compared(page)
        directions = "elements => elements.map(each => [each.textContent, getComputedStyle(each).direction])"
        assert dict(page.locator(f"#set {TITLE}").evaluate_all(directions)) == {
            document: "rtl",
            "A text in English": "ltr",
        }
        for field in ("#query", "#documents"):
            assert page.locator(field).evaluate("field => getComputedStyle(field).direction") == "rtl"


def test_the_first_sight(opened: Open) -> None:
    """A result, without a click, and queries to try; on the first screen, even of a phone, is the outcome."""
    with opened(viewport={"width": 390, "height": 844}) as page:
        compared(page)
        assert outcome(page)
        boxes = [page.locator(name).bounding_box() for name in ("#headline", "#set", "#ranking", "#comparison")]
        places = [(box["y"], box["height"]) for box in boxes if box]
        assert places == sorted(places) and len(places) == 4 and sum(places[0]) < 844
        page.locator("#tries button").nth(1).click()
        expect(page.locator("#query")).to_have_value(page.locator("#tries button").nth(1).inner_text())
        compared(page)


def test_the_address_holds_the_state(opened: Open) -> None:
    with opened() as page:
        compared(page)
        ask(page, "round a number", depth=500, filter='{"kind": "function"}')
        first = page.locator(f"#set {TITLE}").all_inner_texts()
        page.reload()
        compared(page)
        assert page.input_value("#query") == "round a number"
        assert page.locator(f"#set {TITLE}").all_inner_texts() == first
        page.go_back()
        expect(page.locator("#query")).to_have_value(QUERY)
        compared(page)
        assert page.input_value("[name=filter]") == page.input_value("[name=depth]") == ""


@pytest.mark.strangers
def test_link_asks_the_same_and_shows_its_options(opened: Open, demonstrated: Service) -> None:
    with opened("/playground?k=12") as page:
        compared(page)  # of the demo's query
        sent = requests(page)
        page.evaluate("document.querySelector('.more').open = true")
        page.select_option("[name=method]", "boundarymorph")
        page.fill("[name=depth]", "400")
        page.fill("[name=distinct]", "kind")
        page.fill("[name=filter]", '{"kind": {"ne": "class"}}')
        page.check("[name=hybrid]")
        page.check("[name=auto]")
        page.click("#go")
        compared(page)
        link = page.url.removeprefix(demonstrated.url)
    with opened("/docs") as page:
        again = requests(page)
        page.goto(demonstrated.url + link)
        compared(page)
        assert page.locator(".more[open] summary").inner_text() == "More options (6 set)"
        assert page.is_disabled("#budget") and page.url.endswith(link)
    assert again[0] == sent[0] and again[0]["k"] == 12


@pytest.mark.strangers
@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("query=numbers&index=nope", "There is no index 'nope' here."),
        ("query=numbers&index=own", "The index 'own' needs vectors of queries, which this page cannot make."),
        ("query=numbers&method=nope", "There is no method 'nope' here."),
        ("query=numbers&budget=nope", "There is no budget 'nope' here."),
    ],
)
def test_link_that_cannot_be_followed_asks_nothing(
    opened: Open, demonstrated: Service, link: str, complaint: str
) -> None:
    assert demonstrated.client.put("/indexes/own", json={"dimension": 4}).is_success
    with opened("/docs") as page:
        sent = requests(page)
        page.goto(f"{demonstrated.url}/playground?{link}")
        expect(page.locator("#problem")).to_contain_text(complaint)
        assert page.input_value("#query") == "numbers" and not page.locator("#answer").is_visible()
    assert demonstrated.client.delete("/indexes/own").is_success
    assert sent == []


@pytest.mark.strangers
def test_back_leaves_documents_of_ones_own(opened: Open) -> None:
    """The address has them no more than the answer to them."""
    with opened() as page:
        compared(page)
        ask_the_example(page)
        compared(page)
        assert "source=pool" in page.url and "index=" not in page.url
        page.go_back()
        expect(page.locator("#query")).to_have_value(QUERY)
        compared(page)
        expect(page.locator("#index")).to_be_visible()
        expect(page.locator("#status")).to_contain_text("50 of 50 calls")


@pytest.mark.strangers
def test_title_of_a_long_document_is_short(opened: Open) -> None:
    """Wherever it is named. A character beyond U+FFFF is not cut in half."""
    with opened() as page:
        page.check("[value=pool]")
        page.fill("#documents", "\n".join(f"{number} {'😀' * 200} convert a string" for number in range(20)))
        page.fill("#budget", "6")
        page.click("#go")
        compared(page)
        page.evaluate("document.querySelector('#all-calls').open = true")
        titles = page.locator(f"#set {TITLE}").all_inner_texts()
        assert {len(title) for title in titles} == {80} and {title[-1] for title in titles} == {"…"}
        assert max(map(len, page.locator("#all-calls td").all_inner_texts())) < 200


def test_a_stale_answer(opened: Open) -> None:
    """Is dimmed while another one is awaited, and stays if that is cancelled."""
    with opened() as page:
        ask(page, budget=20, k=12)
        before = page.inner_text("#headline")
        page.route("**/select", lambda route: None)  # which never answers
        page.fill("#query", "round a number")
        page.click("#go")
        expect(page.locator("#answer")).to_have_css("opacity", "0.45")
        page.press("#cancel", "Enter")
        expect(page.locator("#go")).to_be_focused()
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
        expect(page.locator("#progress")).to_contain_text("Cancelled")
        assert page.inner_text("#headline") == before and not page.locator("#cancel").is_visible()


def test_several_queries(opened: Open, demonstrated: Service) -> None:
    """The address holds them, and the page leaves out what is about one query."""
    also = ["read and write archives", "days of a month"]
    with opened("/playground?k=12&budget=20") as page:
        ask(page)
        page.fill("[name=also]", "\n".join(also) + "\n\n")
        page.click("#go")
        expect(page.locator("#outcome")).to_contain_text(f"“{also[0]}”")
        wanted = {"query": None, "queries": [QUERY, *also], "index": demo.INDEX, "budget": 20, "k": 12, "reuse": False}
        answer = demonstrated.select(**wanted)
        assert page.locator(f"#set {TITLE}").all_inner_texts() == ids(answer)
        for place, query in enumerate([QUERY, *also]):
            count = sum(document["query"] == place for document in answer["documents"])
            assert f"“{query}” {count}" in page.inner_text("#outcome")
        for hidden in ("#ranking", "#curve", "#comparison"):
            assert not page.locator(hidden).is_visible()
        page.locator("#set summary").first.click()
        leading = [QUERY, *also][answer["documents"][0]["query"]]
        assert f"It answers “{leading}”" in page.locator("#set .why").first.inner_text()
        page.evaluate("document.querySelector('#all-calls').open = true")
        asked = page.locator("#all-calls td:nth-child(6)").all_inner_texts()
        assert len(asked) == 20 and set(asked) == {QUERY, *also}
        assert findings(page) == []
        page.click("#tab-Python")
        assert also[0] in page.inner_text("#code")
        compile(page.inner_text("#code"), "snippet", "exec")

        page.reload()
        expect(page.locator("#outcome")).to_contain_text(f"“{also[0]}”")
        page.evaluate("document.querySelector('.more').open = true")
        page.fill("[name=also]", "")
        page.click("#go")
        compared(page)
        assert page.locator("#ranking").is_visible() and page.locator("#comparison").is_visible()


@pytest.mark.parametrize(
    ("also", "wrong", "value"), [("sleep", "auto", None), ("sleep", "distinct", "text"), ("", "depth", "99999")]
)
def test_an_option_that_is_not_valid_is_shown(opened: Open, also: str, wrong: str, value: str | None) -> None:
    """Which includes those that do not go with further queries. Nothing is sent until it is gone."""
    with opened() as page:
        compared(page)
        page.evaluate("document.querySelector('.more').open = true")
        field = page.locator(f"[name={wrong}]")
        page.fill("[name=also]", also)
        if value is None:
            field.check()
        else:
            field.fill(value)
        page.evaluate("document.querySelector('.more').open = false")
        page.route("**/select", lambda route: pytest.fail("it was sent"))
        page.click("#go")
        expect(field).to_be_focused()
        assert field.is_visible()
        assert not also or "does not go with further queries" in field.evaluate("field => field.validationMessage")
        page.unroute("**/select")
        page.fill("[name=also]", "")
        if value is not None:
            field.fill("")
        page.click("#go")
        expect(page.locator("#status")).to_contain_text("calls")
        compared(page)


def test_a_field_that_is_not_shown_is_not_in_the_way(opened: Open) -> None:
    with opened() as page:
        ask(page, depth=500)
        page.fill("[name=depth]", "999999")
        ask_the_example(page)
        compared(page)
        assert page.locator("#set > li").count() == 5


def test_many_documents(opened: Open) -> None:
    """Are listed when somebody wants them."""
    with opened() as page:
        ask(page, budget=5, k=130)
        assert page.locator("#set > li").count() == 12
        page.press("#rest", "Enter")
        assert page.locator("#set > li").count() == 130
        expect(page.locator("#set summary").nth(12)).to_be_focused()


def test_where_it_is_found(demonstrated: Service) -> None:
    assert f"{demonstrated.url}/playground" in demonstrated.log


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_the_description_of_the_api(opened: Open, scheme: str, is_dark: bool) -> None:
    with opened("/docs", color_scheme=scheme) as page:
        expect(page.locator(".opblock-summary-path").first).to_be_visible()
        with Image.open(BytesIO(page.screenshot())) as seen:
            brightness = np.asarray(seen.convert("L")).mean()
        assert (brightness < 100) if is_dark else (brightness > 200)
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
def test_of_another_index_nothing_is_asked_at_first_sight(opened: Open, tmp_path: Path) -> None:
    """The query is empty, and Enter in the field of the key leaves the page where it is."""
    with service(tmp_path / "data") as running:
        assert running.client.put("/indexes/own").is_success
        with opened(url=running.url) as page:
            expect(page.locator("#index option")).to_have_count(1)
            assert page.input_value("#query") == ""
            page.fill("#key", "any")
            page.press("#key", "Enter")
            assert page.url.endswith("/playground") and page.input_value("#key") == "any"
