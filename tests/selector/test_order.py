"""A run refuses calls that make no sense in its state."""

from itertools import product

import numpy as np
import pytest

from boundarymorph.selector.order import CALLS, Call, CallOrder, State


class Run(CallOrder):
    batch = np.arange(2)


@pytest.mark.parametrize(("state", "call"), [*product(("new", "retrieved", "chosen", "done"), CALLS)])
def test_each_call_is_possible_in_one_state(state: State, call: Call) -> None:
    run = Run()
    run.state = state
    before, after = CALLS[call]
    if state == before:
        run.enter(call)
        assert run.state == after
    else:
        with pytest.raises(RuntimeError, match=f"is in '{state}'"):
            run.enter(call)
        assert run.state == state


def test_without_a_batch_only_the_result_is_left() -> None:
    run = Run()
    run.state, run.batch = "chosen", np.arange(0)
    for call in ("progress", "score"):
        with pytest.raises(RuntimeError, match="nothing left to score"):
            run.enter(call)
    run.enter("result")
    with pytest.raises(RuntimeError, match="is in 'done'"):
        run.enter("result")
