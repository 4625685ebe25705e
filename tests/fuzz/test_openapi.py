"""What the applications promise in OpenAPI, and what they do: some examples; `make soak NAME=api` has a thousand."""

from pathlib import Path

import pytest

from tests.fuzz.examination import examine
from tests.fuzz.services import APPS, App

# A gateway has the routes of the whole service, whose schema is covered already.
PHASES = {"gateway": ("examples", "fuzzing", "stateful")}


@pytest.mark.usefixtures("tiny_weights")
@pytest.mark.parametrize("app", APPS)
async def test_keeps_its_promises(app: App, tmp_path: Path) -> None:
    code, report = await examine(app, tmp_path, embedded=True, examples=1, seed=0, phases=PHASES.get(app, ()))
    assert code == 0, report
    assert "Tested: " in report, report
