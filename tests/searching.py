"""How far hypothesis searches: the same few examples in each run, or many others for long."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import HealthCheck, settings

UNTIMED: Final = "untimed"
"""The profile of a usual run."""
_USUAL: Final = 100
"""Examples of a property that does not say how many it takes."""
_SOAK: Final = 30
"""How many times more the profile `soak` tries."""

# How long an example takes is the machine's affair, and that of the other tests on it.
settings.register_profile(
    UNTIMED,
    max_examples=_USUAL,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "soak",
    settings.get_profile(UNTIMED),
    max_examples=_USUAL * _SOAK,
    derandomize=False,
)


def times(usual: int) -> int:
    """Give how often to try what a usual run tries so often: as many times more in a soak."""
    return usual * settings().max_examples // _USUAL


def examples(usual: int, **others: Any) -> settings:
    """Take so many examples, or as many times more as the profile in force does.

    Args:
        usual: how many in a usual run.
        others: more settings of hypothesis.
    """
    return settings(max_examples=times(usual), **others)
