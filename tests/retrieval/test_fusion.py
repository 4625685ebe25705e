"""Reciprocal rank fusion against its definition, and what holds for any rankings."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundarymorph.errors import DuplicateIds
from boundarymorph.retrieval.document import Document, Search
from boundarymorph.retrieval.local.catalog import LocalCatalog
from boundarymorph.retrieval.ranking import fuse

rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=5)


def exact(id: str, lists: list[list[str]]) -> Fraction:
    return sum((Fraction(1, 60 + ranking.index(id) + 1) for ranking in lists if id in ranking), Fraction())


@given(rankings)
def test_the_definition(lists: list[list[str]]) -> None:
    seen = list(dict.fromkeys(id for ranking in lists for id in ranking))
    fused = fuse(lists)
    assert fused.ids == sorted(seen, key=lambda id: (-exact(id, lists), seen.index(id)))
    np.testing.assert_allclose(fused.scores, [float(exact(id, lists)) for id in fused.ids], rtol=1e-14)
    assert (np.diff(fused.scores) <= 0).all()


@given(rankings, st.randoms(use_true_random=False))
def test_scores_do_not_depend_on_the_order_of_the_rankings(lists: list[list[str]], random: object) -> None:
    shuffled = list(lists)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = fuse(lists), fuse(shuffled)
    assert dict(zip(one.ids, one.scores, strict=True)) == dict(zip(other.ids, other.scores, strict=True))


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.integers(1, 4))
def test_agreeing_rankings_stay_as_they_are(ranking: list[str], times: int) -> None:
    assert fuse([ranking] * times).ids == ranking


@given(rankings)
def test_a_document_that_is_above_another_everywhere_stays_above(lists: list[list[str]]) -> None:
    fused = fuse(lists)
    for first in fused.ids:
        for second in fused.ids:
            above = [
                first in ranking and (second not in ranking or ranking.index(first) < ranking.index(second))
                for ranking in lists
                if first in ranking or second in ranking
            ]
            if first != second and all(above):
                assert fused.ids.index(first) < fused.ids.index(second)


def test_ties_go_by_the_first_ranking() -> None:
    assert fuse([["a", "b"], ["b", "a"], ["c", "d"], ["d", "c"]]).ids == ["a", "b", "c", "d"]
    assert fuse([["a"], ["b"], ["c"]]).ids == ["a", "b", "c"]


def test_nothing_to_fuse() -> None:
    assert fuse([]).ids == []
    assert fuse([[], []]).scores.shape == (0,)


def test_a_ranking_that_repeats_a_document_is_refused() -> None:
    with pytest.raises(DuplicateIds, match="ranking 2 of 2"):
        fuse([["a"], ["b", "b"]])


def test_a_hybrid_pool_tells_similarity_and_bm25(tmp_path: Path) -> None:
    """Of documents that the vectors found, and of those that the words alone did."""
    rows = np.random.default_rng(0).standard_normal((60, 4))
    documents = [Document(f"d{n}", "harp" if n % 3 == 0 else "drum") for n in range(60)]
    catalog = LocalCatalog(tmp_path)
    index = catalog.create("i", encoder=None, dimension=4)
    index.upsert(documents, rows)
    pool = index.retrieve(Search("harp", 10, [1.0, 0, 0, 0], hybrid=True)).pool
    by_vectors = index.retrieve(Search("harp", 10, [1.0, 0, 0, 0])).pool
    catalog.close()
    assert set(by_vectors.features) == {"bm25"}
    assert not set(pool.ids) <= set(by_vectors.ids)
    assert (np.diff(pool.scores) <= 0).all()
    np.testing.assert_allclose(pool.features["similarity"], pool.embeddings @ pool.query, atol=1e-6)
    said = [int(id[1:]) % 3 == 0 for id in pool.ids]
    np.testing.assert_array_equal(pool.features["bm25"] > 0, said)
