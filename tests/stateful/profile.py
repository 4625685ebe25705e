"""The length of state machine runs: short and deterministic in `make test`, long in `make soak NAME=models`."""

from hypothesis import HealthCheck, settings

SOAK = "soak"
SOAK_FACTOR = 30  # as many runs, with twice the steps

settings.register_profile(SOAK, derandomize=False, database=None, deadline=None)
settings.register_profile("unhurried", deadline=None)  # a machine may be busy with other things
settings.load_profile("unhurried")


def times(short: int, long: int) -> int:
    """Return the number of runs: the first in `make test`, the second if time does not matter."""
    return long if settings.get_current_profile_name() == SOAK else short


def draws(runs: int, steps: int) -> settings:
    """So many runs of at most so many steps in `make test`.

    A machine takes them as `TestX = XMachine.TestCase` and `TestX.settings = draws(30, 40)`.
    """
    return settings(
        max_examples=times(runs, SOAK_FACTOR * runs),
        stateful_step_count=times(steps, 2 * steps),
        derandomize=bool(times(1, 0)),
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
