"""`make load`: runs Locust's users (load_tests/locustfile.py) against a service that it starts.

Users are applications, agents that ask for more, slow clients and clients that disconnect, in a closed loop. One row
per kind of request; Locust's own report is build/bench/load.html, and the course over time build/bench/load.png.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from load_tests import plots, report
from load_tests.processes import serving
from load_tests.report import RESULTS
from load_tests.workload import fill

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--spawn-rate", type=float, default=2, help="users that begin a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--documents", type=int, default=3_000)
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(["serve", "--data-directory", f"{directory}/data"]) as server,
    ):
        asyncio.run(_fill(server.url, arguments.documents))
        code = _locust(server.url, Path(directory), arguments)
        rows = _rows(Path(directory) / "load_stats.csv")
        _plot(Path(directory) / "load_stats_history.csv")
    total = rows[-1]
    report.write("load", rows, {"failed": total["failed"], "requests_per_second": total["per_second"]})
    sys.exit(code)


async def _fill(url: str, documents: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await fill(client, documents)


def _locust(url: str, directory: Path, arguments: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary", "--host", url]
    command += ["--users", str(arguments.users), "--spawn-rate", str(arguments.spawn_rate)]
    command += ["--run-time", f"{arguments.seconds}s", "--stop-timeout", "60", "--csv-full-history"]
    command += ["--csv", str(directory / "load"), "--html", str(RESULTS / "load.html")]
    environment = os.environ | {"BOUNDARYMORPH_LOAD_DOCUMENTS": str(arguments.documents), "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, env=environment, check=False).returncode


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open() as file:
        return [
            {
                "request": line["Name"],
                "sent": int(line["Request Count"]),
                "failed": int(line["Failure Count"]),
                "per_second": float(line["Requests/s"]),
                **{f"p{share}_ms": _number(line[f"{share}%"]) for share in (50, 95, 99)},
                "longest_ms": float(line["Max Response Time"]),
            }
            for line in csv.DictReader(file)
        ]


def _plot(path: Path) -> None:
    with path.open() as file:
        lines = [line for line in csv.DictReader(file) if line["Name"] == "Aggregated"]
    start = min((int(line["Timestamp"]) for line in lines), default=0)
    series = {
        share: [(float(line["Timestamp"]) - start, _number(line[share])) for line in lines]
        for share in ("50%", "95%", "99%")
    }
    plots.history("load", series, ("s", "of the last ten seconds, ms"))


def _number(cell: str) -> float:
    return float("nan") if cell == "N/A" else float(cell)


if __name__ == "__main__":
    report.run(main)
