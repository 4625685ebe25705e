"""The length of state machine runs.

They are short and deterministic in `make test`, and long in `make soak NAME=models`.
"""

from hypothesis import HealthCheck, settings

SOAK = "soak"
SOAK_FACTOR = 30  # how many more runs; each has twice the steps

settings.register_profile(SOAK, derandomize=False, database=None, deadline=None)
settings.register_profile("unhurried", deadline=None)  # a machine may be busy
settings.load_profile("unhurried")


def times(short: int, long: int) -> int:
    """Return the number of runs, which is `long` in `make soak` and `short` otherwise."""
    return long if settings.get_current_profile_name() == SOAK else short


def draws(runs: int, steps: int) -> settings:
    """Return settings for this many runs and steps in `make test`, and more in `make soak`.

    A machine uses them as `TestX = XMachine.TestCase` and `TestX.settings = draws(30, 40)`.
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
