"""The words of texts, and how much the witnesses count beside a scorer that was trained on web passages."""

import json
import re
from itertools import pairwise

import pytest

from boundarymorph.inference.models import embedded_cross_encoder
from boundarymorph.scoring import domain
from boundarymorph.scoring.domain import by_witnesses, fertility
from boundarymorph.selection.pool import READ_BY_WITNESSES

WEB = (
    "the town lies at the end of a long valley, and most people who come here stay for a night or two before they walk "
    "on to the coast; in summer there are boats to the islands, and the last bus leaves at nine in the evening. you "
    "can buy bread and fruit on the market, which opens early every day of the week except for the first of the month."
)
SPECIAL = (
    "cystic fibrosis transmembrane conductance regulator potentiators restore mucociliary clearance and diminish "
    "pseudomonal bronchiectasis, whereas hypertonic nebulised solutions ameliorate hyperinflation; pancreatic "
    "exocrine insufficiency necessitates lipase supplementation, and aminoglycoside ototoxicity was audiometrically "
    "ascertained in heterozygous neonates with meconium ileus and hepatobiliary fibrosis after cholestasis."
)
SCORER = "cross-encoder/ms-marco-MiniLM-L-12-v2@0123/int8"


def pieces(word: str, vocabulary: dict[str, int]) -> int:
    """Cut off the longest known beginning, again and again (WordPiece)."""
    count, rest = 0, word
    while rest:
        known = [end for end in range(1, len(rest) + 1) if ("##" if count else "") + rest[:end] in vocabulary]
        if not known:
            return 1  # an unknown word is one token
        rest, count = rest[known[-1] :], count + 1
    return count


def test_fertility_is_the_pieces_a_word_with_some_of_the_web_beside_them() -> None:
    vocabulary = json.loads(embedded_cross_encoder().tokenizer.read_text())["model"]["vocab"]
    words = 3 * re.findall("[a-z]{2,}", SPECIAL[: domain.MOST_CHARACTERS])
    expected = (sum(pieces(word, vocabulary) for word in words) + 200 * 1.12) / (len(words) + 200)
    assert fertility([SPECIAL] * 3) == pytest.approx(expected, rel=1e-12)
    assert fertility([]) == pytest.approx(1.12) and fertility(["fibrosis"]) == pytest.approx(1.12, abs=0.01)


def test_names_numbers_and_other_scripts_are_no_words() -> None:
    noise = "Llanfairpwllgwyngyll (Ynys Môn) 24 a1b2c3 x-Ray überquert ヶ原 ÆØÅ "
    assert fertility([noise, *[WEB] * 4]) == pytest.approx(fertility([WEB] * 4), abs=0.002)


def test_only_the_beginnings_of_the_first_documents_are_read() -> None:
    first = [WEB] * domain.SAMPLE
    assert fertility([*first, *[SPECIAL] * 50]) == fertility(first)
    assert fertility([WEB * 2 + SPECIAL] * 3) == fertility([WEB * 2] * 3)


@pytest.mark.parametrize("scorer", [SCORER, "https://reranker:80 (MSMARCO-distilbert)"])
def test_witnesses_count_more_the_more_special_the_words(scorer: str) -> None:
    usual = READ_BY_WITNESSES
    assert by_witnesses(scorer, [WEB] * 4) == usual
    assert by_witnesses(scorer, [SPECIAL] * 4) == domain.MOST_BY_WITNESSES
    mixed = [by_witnesses(scorer, [WEB] * (12 - count) + [SPECIAL] * count) for count in range(13)]
    assert all(less <= more for less, more in pairwise(mixed))
    assert any(usual < some < domain.MOST_BY_WITNESSES for some in mixed)


@pytest.mark.parametrize("scorer", [None, "BAAI/bge-reranker-v2-m3", "rerank-v3.5"])
def test_a_scorer_of_other_training_is_believed_as_much_anywhere(scorer: str | None) -> None:
    assert by_witnesses(scorer, [SPECIAL] * 4) == READ_BY_WITNESSES


def test_without_the_embedded_models_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boundarymorph.inference.models.find_spec", lambda name: None)
    domain._tokenizer.cache_clear()
    try:
        assert by_witnesses(SCORER, [SPECIAL] * 4) == READ_BY_WITNESSES
    finally:
        domain._tokenizer.cache_clear()
