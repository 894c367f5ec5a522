"""How far hypothesis searches: the same few examples in each run, or many others for long."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import HealthCheck, settings

_UNTIMED: Final = "untimed"
"""The profile of a usual run."""
_FULL: Final = 100
"""Examples of a property that does not say how many it takes."""
_USUAL: Final = 1 / 2
_SOAK: Final = 30
"""The part of the examples that a usual run takes, always the same, and a soak, always others."""

# How long an example takes is the machine's affair, and that of the other tests on it.
settings.register_profile(
    _UNTIMED,
    max_examples=int(_FULL * _USUAL),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "soak",
    settings.get_profile(_UNTIMED),
    max_examples=_FULL * _SOAK,
    derandomize=False,
)


def take_usual() -> None:
    """Put the profile of a usual run in force."""
    settings.load_profile(_UNTIMED)


def times(full: int) -> int:
    """Return how often the profile in force tries what is tried so often in full."""
    return full * settings().max_examples // _FULL


def examples(full: int, **others: Any) -> settings:
    """Return settings with the profile's part of so many examples.

    Args:
        full: how many examples in full.
        others: more settings of hypothesis.
    """
    return settings(max_examples=times(full), **others)
