"""Reading the tables that the studies share."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from boundarymorph.evaluation import tables
from boundarymorph.evaluation.tables import ScoreTable
from boundarymorph.selection import Pool, SelectionSession
from load_tests import evaluation_order, evaluation_rerank, studies
from tests.evaluation.tables import synthetic


@pytest.fixture
def given(tmp_path: Path) -> Callable[..., list[ScoreTable]]:
    """Parse the command line with the tables `one` and `other`, of which only the first has its texts in a folder."""
    one, other = synthetic(queries=2, without=["terms"]), synthetic(n=70, without=["terms"])
    for name, table in (("one", one), ("other", other)):
        tables.write(table, tmp_path / "tables" / f"{name}.npz")
    folder = tmp_path / "texts" / "whatever"
    folder.mkdir(parents=True)
    for name, ids in (("corpus", one.arrays["doc_ids"]), ("queries", one.arrays["query_ids"])):
        lines = [orjson.dumps({"_id": id, "text": f"text {id}"}) for id in ids.tolist()]
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines))

    def parsed(*options: str) -> list[ScoreTable]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["study", str(tmp_path / "tables"), *options])
            found: list[ScoreTable] = studies.parsed(studies.parser(None)).tables
        return found

    return parsed


def test_tables_have_the_terms_of_their_texts(
    given: Callable[..., list[ScoreTable]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [table.provides & {"texts", "terms"} for table in given()] == [set(), set()]
    assert capsys.readouterr().out.count("unknown") == 2
    one, other = given("--collections", str(tmp_path / "texts"))
    assert one.name == "one" and one.provides >= {"texts", "terms"} and "terms" not in other.provides
    assert capsys.readouterr().out.startswith("other: ")
    pool = one.question(1).pool
    assert pool.terms is not None
    np.testing.assert_array_equal(pool.terms, [np.ones(60), [id == "q1" for id in pool.ids]][: len(pool.terms)])


def test_the_head_of_a_pool_has_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Pool] = []

    def order(pool: Pool, scores: NDArray[np.float64], budget: int) -> NDArray[np.intp]:
        seen.append(pool)
        return np.arange(len(scores))

    monkeypatch.setattr(evaluation_order, "RANKERS", {"first": order, "order": order})
    table = synthetic(queries=1)
    evaluation_order._row(table, 1, 20, 5)
    whole = table.question(0).pool
    assert whole.terms is not None
    np.testing.assert_array_equal(seen[0].terms, whole.terms[:, :20])


def test_a_list_is_ranked_with_the_words_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Pool] = []

    def noted(session: SelectionSession, scores: NDArray[np.float64], size: int) -> SelectionSession:
        pools.append(session.pool)
        return session

    monkeypatch.setattr(evaluation_rerank, "play", noted)
    evaluation_rerank._ranked("Winter snow", ["snow in winters", "rain", "snow"], np.array([0.9, 0.1, 0.5]), 2)
    assert pools[0].terms is not None
    assert pools[0].terms.tolist() == [[True, False, False], [True, False, True]]


def test_discounted_gain_against_hand_numbers() -> None:
    gains = np.array([3.0, 0.0, 1.0, 2.0])
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert studies.normalised_discounted_gain(np.array([0, 3, 2]), gains) == pytest.approx(1.0)
    assert studies.normalised_discounted_gain(np.array([2, 1, 0]), gains) == pytest.approx((1 + 3 / 2) / ideal)
    assert studies.normalised_discounted_gain(np.array([3, 0]), gains) == pytest.approx(
        (2 + 3 / math.log2(3)) / (3 + 2 / math.log2(3))
    )
    assert math.isnan(studies.normalised_discounted_gain(np.array([0]), np.zeros(3)))
