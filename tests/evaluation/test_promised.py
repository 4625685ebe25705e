"""The study of promises: half of the queries certify when the others stop."""

from pathlib import Path

import numpy as np
import pytest

from boundarymorph.evaluation import report
from boundarymorph.evaluation.methods import chosen
from boundarymorph.evaluation.promised import CALLS, audit_of, kept, stop
from boundarymorph.evaluation.study import study
from boundarymorph.selection.promise import Audit, Look, Promise
from tests.evaluation.tables import synthetic


def test_an_audit_is_of_the_path_of_a_session() -> None:
    question = synthetic(1, 120).question(0)
    audit = audit_of(question, 10)
    calls = [look.calls for look in audit.looks]
    assert calls == sorted(set(calls)) and calls[-1] <= 120
    assert audit.looks[-1].real == pytest.approx(0.0, abs=1e-6), "the whole pool is scored"
    assert audit.looks[0].believed == np.inf and audit.looks[0].real > 0.0


def test_a_session_stops_where_it_believes_little() -> None:
    believed = [0.1, 0.01, 0.2, 0.01, 0.0]
    audit = Audit(tuple(Look(10 * place, one, 0.0) for place, one in enumerate(believed, start=1)))
    assert stop(audit, 0.05).calls == 20 and stop(audit, 0.05, 2).calls == 50
    assert stop(audit, 0.3).calls == 10 and stop(audit, -1.0).calls == 50


def test_what_is_kept_and_what_is_refused() -> None:
    rng = np.random.default_rng(0)
    good = [Audit((Look(20, b, 2 * b), Look(CALLS, 0.0, 0.0))) for b in rng.uniform(0, 0.1, 60).tolist()]
    found = kept(good, Promise(0.1, 0.9))
    assert found.refused == 0.0 and found.broken is not None and 0.02 < found.broken <= 0.1
    assert found.calls is not None and found.calls < found.believed_calls <= CALLS
    bad = [Audit((Look(CALLS, 0.0, 0.5),))] * 60
    refused = kept(bad, Promise(0.1, 0.9))
    assert (refused.refused, refused.broken, refused.believed_broken) == (1.0, None, 1.0)


def test_the_report_has_a_part(tmp_path: Path) -> None:
    made = study(synthetic(20, 60), chosen(["ss"]), [5], [10], promise=0.1)
    report.write([made], tmp_path)
    assert "## Promised" in (tmp_path / "report.md").read_text()
