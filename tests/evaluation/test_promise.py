"""Test stopping rules that guarantee a loss, by definition and on simulated requests."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from boundarymorph_evaluation.promise import RECENT, Audit, Checkpoint, Promise, certify

PROMISE = Promise(0.05, 0.9)
LOSSES = st.sampled_from([0.0, 0.02, 0.05, 0.07, 0.2, 1.0])


def audit(*checkpoints: tuple[float, float]) -> Audit:
    """Return an audit with the believed and the real loss after 10, 20, ... calls."""
    return Audit(tuple(Checkpoint(10 * place, *checkpoint) for place, checkpoint in enumerate(checkpoints, start=1)))


audits = st.lists(
    st.lists(st.tuples(st.one_of(LOSSES, st.just(math.inf)), LOSSES), min_size=1, max_size=5).map(lambda a: audit(*a)),
    max_size=RECENT,
)


def stopping_point(one: Audit, threshold: float, budget: int) -> Checkpoint | None:
    """Return the checkpoint where a session stops.

    It is the first one whose believed loss is at most the threshold, or the last one.
    """
    checkpoints = [checkpoint for checkpoint in one.checkpoints if checkpoint.calls <= budget]
    return next(
        (checkpoint for checkpoint in checkpoints if checkpoint.believed <= threshold),
        checkpoints[-1] if checkpoints else None,
    )


def violations(given: list[Audit], threshold: float, loss: float, budget: int, among: list[float]) -> int:
    """Count the requests whose loss exceeds `loss`, with this threshold or a smaller one."""
    tried = [other for other in among if other <= threshold]
    return sum(
        any((checkpoint := stopping_point(one, other, budget)) is None or checkpoint.real > loss for other in tried)
        for one in given
    )


@settings(max_examples=50)
@given(audits, st.sampled_from([0.02, 0.05, 0.1]), st.sampled_from([0.5, 0.8, 0.9]), st.sampled_from([5, 20, 30, 50]))
def test_certified_threshold_is_the_largest_allowed_by_definition(
    given: list[Audit], loss: float, probability: float, budget: int
) -> None:
    believed = {
        checkpoint.believed for one in given for checkpoint in one.checkpoints if checkpoint.believed < math.inf
    }
    grid = sorted({-1.0, *believed, 2.0})
    kept = [
        threshold
        for threshold in grid
        if (violations(given, threshold, loss, budget, grid) + 1) / (len(given) + 1) <= 1 - probability + 1e-12
    ]
    found = certify(given, Promise(loss, probability), budget)
    assert (found.threshold is None) == (not kept)
    assert found.audits == len(given)
    if found.threshold is not None:
        assert found.missing is None
        assert max(threshold for threshold in grid if threshold <= max(found.threshold, -1.0)) == max(kept)
    else:
        assert found.missing is not None


def test_certify_names_missing_audits_calls_or_scorer() -> None:
    good, late = audit((0.5, 0.03), (0.04, 0.01)), audit((0.04, 0.2), (0.03, 0.01))
    never = audit((0.04, 0.2), (0.01, 0.1))
    assert PROMISE.fewest == 9
    assert certify([good] * 8, PROMISE, 20).missing == "audits"
    found = certify([good] * 9, PROMISE, 20)
    assert found.threshold is not None and found.threshold > 1, "nothing that was audited breaks it"
    found = certify([*[good] * 9, late], PROMISE, 20)
    assert found.threshold is not None and 0.03 <= found.threshold < 0.04
    assert certify([*[good] * 9, never], PROMISE, 20).missing == "audits", "one in ten may break it, in more audits"
    assert certify([*[good] * 7, *[never] * 3], PROMISE, 20).missing == "scorer"
    assert certify([*[good] * 7, *[late] * 3], PROMISE, 10).missing == "calls"
    assert certify([good] * 20, PROMISE, 9).missing == "calls", "nothing is known of so few"
    assert certify([], PROMISE, 20).missing == "audits"


def test_certificate_is_withdrawn_when_recent_audits_break_it() -> None:
    """Recent audits contradict earlier ones.

    Until there is a new certificate, only the recent ones count.
    """
    good, bad = audit((0.04, 0.01), (0.02, 0.0)), audit((0.04, 0.5), (0.02, 0.5))
    assert certify([good] * 150, PROMISE, 20).threshold is not None
    assert certify([*[good] * 150, *[bad] * 5], PROMISE, 20).threshold is not None, "which may happen by chance"
    found = certify([*[good] * 150, *[bad] * 6], PROMISE, 20)
    assert found.threshold is None and found.audits == RECENT and found.missing == "scorer"
    mended = audit((0.04, 0.5), (0.02, 0.0))
    found = certify([*[good] * 150, *[mended] * 12], PROMISE, 20)
    assert found.threshold is not None and found.threshold < 0.04 and found.audits == RECENT
