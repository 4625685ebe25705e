"""The words of texts, and how much the witnesses count beside a scorer that was trained on web passages."""

from itertools import pairwise

import pytest

from boundarymorph.scoring import scorer as domain
from boundarymorph.scoring.scorer import by_witnesses, word_length
from boundarymorph.selection.pool import READ_BY_WITNESSES

WEB = (
    "the town lies at the end of a long valley, and most people who come here stay for a night or two before they walk "
    "on to the coast; in summer there are boats to the islands, and the last bus leaves at nine in the evening. you "
    "can buy bread and fruit on the market, which opens early every day of the week except for the first of the month."
)
SCIENTIFIC = (
    "cystic fibrosis transmembrane conductance regulator potentiators restore mucociliary clearance and diminish "
    "pseudomonal bronchiectasis, whereas hypertonic nebulised solutions ameliorate hyperinflation; pancreatic "
    "exocrine insufficiency necessitates lipase supplementation, and aminoglycoside ototoxicity was audiometrically "
    "ascertained in heterozygous neonates with meconium ileus and hepatobiliary fibrosis after cholestasis."
)
SCORER = "cross-encoder/ms-marco-MiniLM-L-12-v2@0123/int8"


def test_the_mean_length_with_some_words_of_the_web_beside_them() -> None:
    assert len(SCIENTIFIC) < domain.MOST_CHARACTERS
    lengths = [len(word.strip(",;.")) for word in SCIENTIFIC.split()]
    assert word_length([SCIENTIFIC] * 3) == pytest.approx((3 * sum(lengths) + 490) / (3 * len(lengths) + 100))
    assert word_length([]) == pytest.approx(4.9) and word_length(["fibrosis"]) == pytest.approx(498 / 101)


def test_names_numbers_and_other_scripts_are_no_words() -> None:
    noise = "Llanfairpwllgwyngyll (Ynys Môn) 24 a1b2c3 x-Ray überquert ヶ原 ÆØÅ "
    assert word_length([noise, *[WEB] * 4]) == pytest.approx(word_length([WEB] * 4), abs=0.01)


@pytest.mark.parametrize("scorer", [SCORER, "https://reranker:80 (MSMARCO-distilbert)"])
def test_witnesses_count_more_the_longer_the_words(scorer: str) -> None:
    usual = READ_BY_WITNESSES
    assert by_witnesses(scorer, [WEB] * 4) == usual
    assert by_witnesses(scorer, [SCIENTIFIC] * 4) == domain.MOST_BY_WITNESSES
    mixed = [by_witnesses(scorer, [WEB] * (12 - count) + [SCIENTIFIC] * count) for count in range(13)]
    assert all(less <= more for less, more in pairwise(mixed))
    assert any(usual < some < domain.MOST_BY_WITNESSES for some in mixed)


@pytest.mark.parametrize("scorer", [None, "BAAI/bge-reranker-v2-m3", "rerank-v3.5"])
def test_a_scorer_of_other_training_is_believed_as_much_anywhere(scorer: str | None) -> None:
    assert by_witnesses(scorer, [SCIENTIFIC] * 4) == READ_BY_WITNESSES
