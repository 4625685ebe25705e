"""Draws deploy/grafana's dashboard as it would look, in good health and in trouble: `python -m load_tests.dashboard`.

A gateway with two scorers, a retriever and Redis, and another one with a scripted language model run twice, and a real
Prometheus scrapes them for `--seconds`. In good health there is little load. In trouble callers want too much, one
scorer is killed halfway, and the language model refuses some documents. Prometheus evaluates every expression of the
dashboard, and each panel is drawn at its place, with its unit and thresholds -> docs/dashboard-healthy.png,
docs/dashboard-trouble.png. A panel without data is an error, but for those that show only trouble.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MultipleLocator
from PIL import Image

from boundarymorph.access import keys
from tests.caching.servers import RedisServer
from tests.faults import stand_in
from tests.faults.scenario import DOCUMENTS, fill, new_query
from tests.ports import free_port
from tests.scoring.judge.scripted import MODEL, Chat, completion
from tests.scoring.remote.servers import Reply
from tests.system import service
from tests.system.service import Service

DASHBOARD = Path("deploy/grafana/boundarymorph.json")
STEP, RATE_INTERVAL = 2, "20s"  # seconds between two points; what Grafana puts for $__rate_interval
WARM_UP = 22  # seconds of load before the first point
ONLY_TROUBLE = {"Refused selections", "Pairs not sent, as a ceiling of cost was reached"}  # no data without it
COLUMNS, CELL = 24, (0.66, 0.28)  # of Grafana's grid; inches of a cell
BACK, PANEL, TEXT, GRID = "#111217", "#181b1f", "#ccccdc", "#2c3235"
COLOURS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}
SERIES = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#c8f2c2", "#ffa6b0", "#fade2a"]


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a panel. at: seconds since the beginning."""

    label: str
    at: np.ndarray
    values: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    parser.add_argument("--states", nargs="+", choices=("healthy", "trouble"), default=("healthy", "trouble"))
    given = parser.parse_args()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for state in given.states:
        found = recorded(panels, given.seconds, trouble=state == "trouble")
        out = given.folder / f"dashboard-{state}.png"
        draw(panels, found, out)
        if unexpected := {title for title, drawn in found.items() if not drawn} ^ (
            set() if state == "trouble" else ONLY_TROUBLE
        ):
            sys.exit(f"{out}: no data where there should be some, or some where there should be none: {unexpected}")
        complete = found["Complete answers"][0].values[-1]
        if (complete < 1) != (state == "trouble"):
            sys.exit(f"{out}: {complete:.2%} of the answers were complete; is the machine busy with something else?")
        print(f"{len(found)} panels, {sum(map(len, found.values()))} series -> {out}")


def recorded(panels: Sequence[Mapping[str, Any]], seconds: float, *, trouble: bool) -> dict[str, list[Line]]:
    """Run everything under load, and return the lines of each panel by its title."""
    with (
        TemporaryDirectory() as name,
        deployment(Path(name), trouble=trouble) as running,
        prometheus(Path(name), running.services) as url,
        running.load(),
    ):
        time.sleep(WARM_UP)
        began = time.time()
        time.sleep(seconds / 2)
        if trouble:
            running.services["scorer-2"].process.kill()
        time.sleep(seconds / 2)
        return {panel["title"]: list(lines(url, panel, began)) for panel in panels if panel["type"] != "row"}


class Deployment:
    """The processes, and the load on them."""

    def __init__(
        self, front: Service, judged: Service, scorers: Sequence[Service], retriever: Service, *, trouble: bool
    ) -> None:
        self.services = {"gateway": front, "judged": judged, "scorer-1": scorers[0], "scorer-2": scorers[1]}
        self.services["retriever"] = retriever
        self._trouble = trouble
        self._over = threading.Event()

    @contextmanager
    def load(self) -> Iterator[None]:
        """Within the block: selections, some again, uploads and judgements."""
        threads = [
            threading.Thread(target=self._repeat, args=(task, pause))
            for task, pause in (*self._usual(), *(self._too_much() if self._trouble else ()))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _usual(self) -> Iterator[tuple[Callable[[], object], float]]:
        """Tasks, each with the seconds between one end and the next start."""
        front, judged = self.services["gateway"], self.services["judged"]
        budget, pause = (15, 0.3) if self._trouble else (40, 2.0)
        yield lambda: _select(front, budget=budget, batch_size=5), pause
        yield lambda: _select(front, query="tales of trams", budget=30), 0.8
        yield lambda: _select(judged, budget=10 if self._trouble else 25), 0.5 if self._trouble else 2.0
        yield lambda: _upload(front), 3.0
        yield lambda: _judge(front), 1.0

    def _too_much(self) -> Iterator[tuple[Callable[[], object], float]]:
        """Selections in a hurry, too many at a time, and work that is given up."""
        front = self.services["gateway"]
        yield lambda: _select(front, budget=40, deadline_ms=60), 1.0
        yield lambda: _together(lambda: _select(front, budget=20), 6), 4.0
        yield lambda: _crowd(self.services["scorer-1"]), 2.0

    def _repeat(self, task: Callable[[], object], pause: float) -> None:
        while not self._over.wait(pause):
            with suppress(httpx.HTTPError):
                task()


@contextmanager
def deployment(folder: Path, *, trouble: bool) -> Iterator[Deployment]:
    """A gateway before two scorers and a retriever with an index, and one before a language model, with Redis.

    trouble: with tight limits, and a language model in a mood.
    """
    secret, key = keys.make("app", list(keys.Scope))
    with ExitStack() as stack:
        redis = RedisServer(folder / "redis")
        stack.callback(redis.kill)
        model = stack.enter_context(stand_in.running(Chat()))
        if trouble:
            model.behaviour = _moody()
        retriever = stack.enter_context(service.retriever(folder / "data"))
        fill(retriever)
        scorers = [
            stack.enter_context(service.scorer(folder / f"scorer-{number}.log", embedded=True)) for number in (1, 2)
        ]
        common = {
            "BOUNDARYMORPH_CACHE__URL": redis.url,
            "BOUNDARYMORPH_RATE_LIMITS__DEFAULT": "5/second" if trouble else "50/second",
            "BOUNDARYMORPH_KEYS": str(key),
            "BOUNDARYMORPH_SCORER__JUDGE__INPUT_PRICE": "0.4",
            "BOUNDARYMORPH_SCORER__JUDGE__OUTPUT_PRICE": "1.6",
        }
        if trouble:
            common |= {
                "BOUNDARYMORPH_LIMITS__SESSIONS": "2",
                "BOUNDARYMORPH_LIMITS__WAITING": "1",
                "BOUNDARYMORPH_SCORER__JUDGE__REQUEST_TOKENS": "5000",
            }
        before = ["--retriever-url", retriever.url]
        urls = [option for scorer in scorers for option in ("--scorer-url", scorer.url)]
        chat = f"openai+http://127.0.0.1:{model.port}/v1?model={MODEL}"
        gateways = [
            stack.enter_context(service.service(folder / name, *before, *options, environment=common))
            for name, options in (("gateway", urls), ("judged", ["--scorer-url", chat]))
        ]
        for gateway in gateways:
            gateway.client.headers["authorization"] = f"Bearer {secret}"
        yield Deployment(gateways[0], gateways[1], scorers, retriever, trouble=trouble)


def _moody() -> Callable[[Reply], Any]:
    """A language model that refuses one document in twelve, and gives no grade for another."""
    asked = 0

    async def behave(reply: Reply) -> Reply:
        nonlocal asked
        asked += 1
        if asked % 12 == 5:
            return Reply(completion(None, refusal="I cannot help with that."))
        return Reply(completion("Hard to say.")) if asked % 12 == 11 else reply

    return behave


def _select(gateway: Service, **options: Any) -> None:
    gateway.client.post("/select", json={"query": new_query(), "index": "tales", "k": 10, "reuse": False, **options})


def _together(task: Callable[[], object], count: int) -> None:
    threads = [threading.Thread(target=task) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _upload(gateway: Service) -> None:
    """Upload a few documents, most of them unchanged."""
    changed = {"id": "news", "text": f"It is {time.time():.0f} o'clock."}
    gateway.client.post("/indexes/tales/documents", json=[*DOCUMENTS[:20], changed])


def _judge(gateway: Service) -> None:
    """Say how relevant a document was."""
    judgments = [{"document": DOCUMENTS[0]["id"], "grade": 1, "relevance": 0.7}]
    gateway.client.post("/judgments", json={"query": new_query(), "index": "tales", "judgments": judgments})


def _crowd(scorer: Service) -> None:
    """Send more concurrent requests than can run, with texts that are cut; some disconnect."""

    def ask(seconds: float) -> None:
        texts = [f"{number} {document['text']} " * 30 for number, document in enumerate(DOCUMENTS[:8])]
        with suppress(httpx.TimeoutException):
            httpx.post(f"{scorer.url}/score", json={"query": new_query(), "texts": texts}, timeout=seconds)

    threads = [threading.Thread(target=ask, args=(seconds,)) for seconds in (0.4, 30, 30, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def prometheus(folder: Path, services: Mapping[str, Service]) -> Iterator[str]:
    """Start a Prometheus that scrapes the services each second, and yield its URL."""
    targets = [
        {"targets": [f"127.0.0.1:{running.port}"], "labels": {"instance": name}} for name, running in services.items()
    ]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "boundarymorph", "static_configs": targets}],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))  # which is YAML, too
    url = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.json'}", f"--web.listen-address={url}"]
    command += [f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=warn"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 30
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"http://{url}/-/ready").is_success:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit("Prometheus does not start")
            time.sleep(0.1)
        yield f"http://{url}"
    finally:
        process.terminate()
        process.wait()


def lines(url: str, panel: Mapping[str, Any], began: float) -> Iterator[Line]:
    """Yield Prometheus's values of a panel's expressions, NaN for gaps. An expression without any value is an error."""
    now = time.time()
    for target in panel["targets"]:
        expression = re.sub(r"\$(role|instance|key)\b", ".*", target["expr"]).replace("$__rate_interval", RATE_INTERVAL)
        parameters: dict[str, Any] = {"query": expression}
        parameters |= {"start": began, "end": now, "step": STEP}
        answer = httpx.get(f"{url}/api/v1/query_range", params=parameters).raise_for_status().json()
        for series in answer["data"]["result"]:
            points = np.array([[float(at), float(value)] for at, value in series["values"]])
            points[~np.isfinite(points)] = np.nan
            if not np.isnan(points[:, 1]).all():
                yield Line(_legend(target["legendFormat"], series["metric"]), points[:, 0] - began, points[:, 1])


def _legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), form)


def draw(panels: Sequence[Mapping[str, Any]], found: Mapping[str, Sequence[Line]], out: Path) -> None:
    """Draw the panels at their places in Grafana's grid."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    plt.rcParams.update({"font.size": 7, "text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT})
    plt.rcParams.update({"ytick.color": TEXT, "axes.edgecolor": GRID, "axes.facecolor": PANEL})
    figure = plt.figure(figsize=(COLUMNS * CELL[0], rows * CELL[1]), facecolor=BACK)
    for panel in panels:
        place = panel["gridPos"]
        left, bottom = place["x"] / COLUMNS, 1 - (place["y"] + place["h"]) / rows
        if panel["type"] == "row":
            figure.text(left + 0.005, bottom + 0.3 / rows, f"▾ {panel['title']}", fontsize=10, weight="bold")
            continue
        width, height = place["w"] / COLUMNS, place["h"] / rows
        figure.add_artist(_card(left, bottom, width, height))
        if panel["type"] == "stat":
            figure.text(left + 0.06 * width, bottom + 0.8 * height, panel["title"], fontsize=8, weight="bold")
            _figures(figure, (left, bottom, width, height), panel["fieldConfig"], found[panel["title"]])
            continue
        axes = figure.add_axes((left + 0.16 * width, bottom + 0.31 * height, 0.81 * width, 0.53 * height))
        axes.set_title(panel["title"], loc="left", fontsize=8, weight="bold", color=TEXT)
        _panel(axes, panel["fieldConfig"]["defaults"], found[panel["title"]])
    figure.savefig(out, dpi=100, facecolor=BACK)
    plt.close(figure)
    with Image.open(out) as image:
        small = image.convert("RGB").quantize(96)
    small.save(out, optimize=True)


def _card(left: float, bottom: float, width: float, height: float) -> Rectangle:
    place = (left + 0.02 * width, bottom + 0.02 * height)
    return Rectangle(place, 0.96 * width, 0.96 * height, facecolor=PANEL, edgecolor=GRID, lw=0.5, zorder=-1)


def _figures(figure: Figure, place: tuple[float, ...], chosen: Mapping[str, Any], drawn: Sequence[Line]) -> None:
    """The last value of each line, in the colour of its threshold."""
    left, bottom, width, height = place
    for number, line in enumerate(drawn):
        options = dict(chosen["defaults"])
        for override in chosen["overrides"]:
            if override["matcher"]["options"] == line.label:
                options |= {changed["id"]: changed["value"] for changed in override["properties"]}
        value = line.values[~np.isnan(line.values)][-1]
        colour = [step["color"] for step in options["thresholds"]["steps"] if (step["value"] or -math.inf) <= value][-1]
        at, size = left + (0.06 + 0.5 * number) * width, 22 if len(drawn) == 1 else 16
        text = shown(float(f"{value:.3g}"), options["unit"])
        figure.text(at, bottom + 0.35 * height, text, fontsize=size, weight="bold", color=COLOURS[colour])
        figure.text(at, bottom + 0.15 * height, line.label, fontsize=7, color=TEXT)


def _panel(axes: Axes, chosen: Mapping[str, Any], drawn: Sequence[Line]) -> None:
    stacked = chosen["custom"]["stacking"]["mode"] == "normal"
    base: np.ndarray | None = None
    for number, line in enumerate(drawn):
        colour, values = SERIES[number % len(SERIES)], line.values
        if stacked:
            values = np.nan_to_num(_on_grid(line, drawn))
            base = np.zeros_like(values) if base is None else base
            axes.fill_between(_grid(drawn), base, base + values, color=colour, alpha=0.3, lw=0)
            base = values = base + values
        at = _grid(drawn) if stacked else line.at
        axes.plot(at, values, color=colour, lw=1.2, label=line.label[:48] or "value", clip_on=False)
    axes.set_ylim(bottom=chosen.get("min"), top=chosen.get("max") and 1.05 * chosen["max"])
    axes.set_xlim(0, max((line.at[-1] for line in drawn), default=1))
    _thresholds(axes, chosen)
    texts = {int(k): text["text"] for one in chosen.get("mappings", ()) for k, text in one["options"].items()}
    if texts:
        axes.set_yticks(list(texts), list(texts.values()))
    else:
        if chosen["unit"] == "bytes":
            axes.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(axes.get_ylim()[1] / 5))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, chosen["unit"])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} s"))
    axes.grid(color=GRID, lw=0.5)
    if not drawn:
        axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes, fontsize=9, color=TEXT)
        axes.set_axis_off()
        return
    columns = 1 if max((len(line.label) for line in drawn), default=0) > 22 else 3
    axes.legend(
        *[part[: 3 * columns] for part in axes.get_legend_handles_labels()],  # Grafana's scrolls
        loc="upper left",
        bbox_to_anchor=(-0.18, -0.12),
        ncol=columns,
        fontsize=6,
        frameon=False,
        labelcolor=TEXT,
        columnspacing=1,
        handlelength=1,
        labelspacing=0.2,
    )


def _grid(drawn: Sequence[Line]) -> np.ndarray:
    return np.unique(np.concatenate([line.at for line in drawn]))


def _on_grid(line: Line, drawn: Sequence[Line]) -> np.ndarray:
    grid = _grid(drawn)
    values = np.full(len(grid), np.nan)
    values[np.searchsorted(grid, line.at)] = line.values
    return values


def _thresholds(axes: Axes, chosen: Mapping[str, Any]) -> None:
    if chosen["custom"].get("thresholdsStyle", {}).get("mode", "off") == "off":
        return
    least, most = axes.get_ylim()
    for step in chosen["thresholds"]["steps"]:
        if step["value"] is not None and least <= step["value"] <= most:  # Grafana's axes do not reach out for them
            axes.axhline(step["value"], color=COLOURS[step["color"]], lw=1, ls="--")


def shown(value: float, unit: str) -> str:
    """Format a value as Grafana does."""
    if unit == "percentunit":
        return f"{100 * value:.0f}%"
    if unit == "s":
        return f"{value:g} s" if value >= 1 else f"{1_000 * value:g} ms"
    if unit == "bytes":
        power = min(max(math.floor(math.log2(value) / 10), 0), 3) if value > 0 else 0
        return f"{float(f'{value / 2 ** (10 * power):.3g}'):g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
    suffix = {"reqps": " req/s", "cps": " c/s"}.get(unit, "")
    if value >= 1_000:
        return f"{value / 1_000:g} K{suffix}"
    return f"{0.0 if math.isclose(value, 0, abs_tol=1e-12) else value:g}{suffix}"


if __name__ == "__main__":
    main()
