"""How `make test` spreads the tests over processes: what takes long first, most files undivided.

A file's tests share its fixtures. All that boots a virtual machine stays in one process: one
machine runs at a time, and a second process would wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

BOOTS: Final = "tests/vm/"
"""Where tests boot a machine."""
_WAITING: Final = (
    "tests/scenarios/test_chaos.py",
    "tests/scenarios/test_service_threads.py",
    "tests/scenarios/test_threads.py",
)
"""Files whose tests share nothing, and wait for minutes: each test goes to any process."""
_LONG: Final = (
    BOOTS,
    *_WAITING,
    "tests/scenarios/",
    "tests/containerd/",
    "tests/starter/",
    "tests/properties/",
)
"""Where tests take long, the longest first."""


class Spreading(LoadFileScheduling):  # type: ignore[misc] # xdist carries no types
    """Gives each process a file, or a test that waits, at a time; one process boots machines."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        # The tests keep the order of `long_first`.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(BOOTS):
            return BOOTS
        if nodeid.startswith(_WAITING):
            return nodeid
        return str(super()._split_scope(nodeid))


def long_first(items: list[pytest.Item]) -> None:
    """Put the tests that take long before the others, so that none of them begins last."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    ranks = (rank for rank, prefix in enumerate(_LONG) if nodeid.startswith(prefix))
    return next(ranks, len(_LONG))
