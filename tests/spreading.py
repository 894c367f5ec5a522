"""How `make test` spreads the tests over processes: what takes long first, most files undivided.

A file's tests share its fixtures. All that boots a virtual machine stays in one process: one
machine runs at a time, and a second process would wait for it.
"""

from __future__ import annotations

from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

BOOTS: Final = "tests/vm/"
"""Where tests boot a machine."""
_CHAOS: Final = "tests/scenarios/test_chaos.py"
_WAITING: Final = (
    "tests/scenarios/test_service_threads.py",
    "tests/scenarios/test_threads.py",
)
"""Files whose tests share nothing, wait for minutes and compute for seconds."""
_DIVIDED: Final = (_CHAOS, *_WAITING)
"""Files that are divided: each of their tests goes to any process."""
_LONG: Final = (
    BOOTS,
    _CHAOS,
    # They compute, while the machines and chaos leave a CPU idle.
    "tests/properties/",
    "tests/conformance/",
    "tests/scenarios/",
    "tests/containerd/",
    "tests/starter/",
    "tests/unit/agent/test_app.py",
)
"""Where tests take long, in their order; short ones fill what is left at the end."""


class Spreading(LoadFileScheduling):  # type: ignore[misc] # xdist carries no types
    """Gives each process a file, or a test that waits, at a time; one process boots machines."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        # The tests keep the order of `long_first`.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(BOOTS):
            return BOOTS
        if nodeid.startswith(_DIVIDED):
            return nodeid
        return str(super()._split_scope(nodeid))


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those that take long first, so that none of them begins last.

    One of those that wait comes after every two files that compute, which then have its CPU.
    """
    waiting = (item for item in items if item.nodeid.startswith(_WAITING))
    others = (item for item in items if not item.nodeid.startswith(_WAITING))
    ordered: list[pytest.Item] = []
    files = groupby(sorted(others, key=_rank), key=attrgetter("path"))
    for number, (_, file) in enumerate(files):
        ordered += file
        if number % 2 and not ordered[-1].nodeid.startswith((BOOTS, _CHAOS)):
            ordered += islice(waiting, 1)
    return [*ordered, *waiting]


def _rank(item: pytest.Item) -> int:
    ranks = (rank for rank, prefix in enumerate(_LONG) if item.nodeid.startswith(prefix))
    return next(ranks, len(_LONG))
