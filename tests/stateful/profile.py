"""How long a state machine runs: short and the same each time in `make test`, long and random in `make soak-models`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SOAK = "soak"
SOAK_FACTOR = 20  # as many runs, with twice the steps

settings.register_profile(SOAK, derandomize=False, database=None)


def draws(runs: int, steps: int) -> settings:
    """So many runs of at most so many steps in `make test`.

    A machine takes them as `TestX = XMachine.TestCase` and `TestX.settings = draws(30, 40)`.
    """
    soak = settings.get_current_profile_name() == SOAK
    return settings(
        max_examples=runs * (SOAK_FACTOR if soak else 1),
        stateful_step_count=steps * (2 if soak else 1),
        derandomize=not soak,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
