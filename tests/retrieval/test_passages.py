"""Test long documents in passages: where they are cut, and which are candidates."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from boundarymorph.api.select_task import cut_of
from boundarymorph.retrieval.document import Document
from boundarymorph.retrieval.passages import Cut, blocks, divide
from boundarymorph.selection import Selection
from boundarymorph.settings import Limits

WINDOW = 512
LONG = "The harbour was repaired in spring. Ships of all kinds lay there. " * 60
NEEDLE = "Corals bleach when the water is too warm. "


def candidates(
    documents: list[Document], query: str = "why do corals bleach", per_document: int = 32, in_all: int = 10_000
) -> Any:
    cut = Cut.plan(documents, query, WINDOW, per_document=per_document, in_all=in_all)
    assert cut is not None
    return divide(documents, query, cut)


@pytest.mark.parametrize("overlap", [0, 5])
def test_passage_blocks_cover_the_text(overlap: int) -> None:
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(rng.choices("ab .\n#。é", [6, 6, 3, 1, 1, 1, 1, 1], k=rng.randrange(200)))
        most = rng.randrange(2 * overlap + 2, 40)
        found = list(blocks(text, most, overlap))
        assert found[0][0] == 0 and found[-1][1] == len(text)
        assert all(end - start <= most for start, end in found)
        for (start, end), (after, _) in pairwise(found):
            assert max(start + 1, end - overlap) <= after <= end


def test_passage_blocks_end_at_the_best_border() -> None:
    text = "One two three four.\nFive six. Seven eight nine ten eleven"
    assert [text[start:end] for start, end in blocks(text, 30)] == [
        "One two three four.",
        "\nFive six. Seven eight nine",
        " ten eleven",
    ]


def test_passage_is_a_slice_of_its_document() -> None:
    long = Document("a", LONG[:2_000] + NEEDLE + LONG, "Harbours", {"year": 1999})
    found = candidates([Document("b", "short"), long])
    assert found.candidates[0].id == "b" and found.candidates[1].id == "a"
    assert found.parents.tolist() == [0] + [1] * (len(found.candidates) - 1)
    for candidate in found.candidates[1:]:
        passage = found.passages.by_id[candidate.id]
        assert (passage.document, passage.text) == (long, candidate.text)
        assert (candidate.title, candidate.metadata) == ("Harbours", {"year": 1999})
        assert len(candidate.content.encode()) <= 4 * WINDOW * 0.75 + len("Harbours\n")


def test_passage_ids_are_unique_and_lead_to_their_documents() -> None:
    documents = [Document(id, LONG) for id in ("a", "a#2", "a##2", "#")]
    found = candidates(documents)
    ids = [candidate.id for candidate in found.candidates]
    assert len(set(ids)) == len(ids)
    parents = [documents[parent].id for parent in found.parents]
    assert [found.passages.document_id(id) for id in ids] == parents


@pytest.mark.parametrize("most", [1, 2, 32])
def test_passages_with_query_words_are_kept_within_the_bound(most: int) -> None:
    text = LONG * 12 + NEEDLE + LONG * 12
    found = candidates([Document("a", text)], per_document=most)
    assert len(found.candidates) == most
    assert found.left_out > 0
    assert found.candidates[0].text == text[: len(found.candidates[0].text)]
    assert any(NEEDLE.strip() in candidate.text for candidate in found.candidates) == (most > 1)


def test_bound_on_all_candidates_is_shared_among_documents() -> None:
    documents = [Document(str(number), LONG if number % 2 else "short") for number in range(10)]
    for in_all, each in ((10, 1), (14, 1), (15, 2)):
        found = candidates(documents, in_all=in_all)
        assert len(found.candidates) == 5 + 5 * each <= in_all
    assert candidates(documents, in_all=9) is None


def test_documents_within_the_window_are_not_split() -> None:
    room = 4 * (WINDOW - 4)  # bytes; the query has less than a token
    whole = [Document("a", "x" * room), Document("b", "é" * (room // 2)), Document("c", " " * 9 * room)]
    long = [Document("d", "x" * (room + 1)), Document("e", "漢" * (room // 3 + 1))]
    assert Cut.plan(whole, "sea", WINDOW, per_document=32, in_all=99) is None
    assert Cut.plan([*whole, *long], "sea", WINDOW, per_document=32, in_all=99) == Cut({3, 4}, room, 32, 99)


@pytest.mark.parametrize(
    ("window", "asked", "room"), [(None, False, None), (None, True, 508), (8_192, False, None), (256, True, 252)]
)
def test_unknown_window_cuts_nothing_without_a_passage_size(window: int | None, asked: bool, room: int | None) -> None:
    cut = cut_of([Document("a", LONG)], "sea", window, Limits(), asked=asked)
    assert (cut and cut.room) == (room and 4 * room)


def test_long_query_leaves_room_for_a_passage() -> None:
    cut = Cut.plan([Document("a", LONG)], "word " * 10_000, WINDOW, per_document=32, in_all=99)
    assert cut is not None and cut.room == 4 * 64


def test_best_passage_stands_for_its_document() -> None:
    found = candidates([Document("a", LONG), Document("b", LONG), Document("c", "short")])
    ids = [candidate.id for candidate in found.candidates]
    order = np.array([1, 0, len(ids) - 1, ids.index("b"), ids.index("b") + 1])
    values = np.linspace(0.9, 0.1, len(order))
    best = found.passages.best(Selection(order, values, values, values > 0.5), ids)
    assert best.documents.tolist() == [1, len(ids) - 1, ids.index("b")]
    assert best.relevance.tolist() == values[[0, 2, 3]].tolist()
