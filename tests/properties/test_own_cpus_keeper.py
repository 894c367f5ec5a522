"""Whatever comes in between, each notice has its whole delay, and the folder tells the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.host import files
from tests import folders
from tests.own_cpus import NOTICE_S, REF, Node
from tests.searching import examples

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 8
EVENTS: Final[tuple[tuple[str, Any], ...]] = (
    *(("resize", count) for count in (3, 5, MOST) * 3),
    *(("wait", seconds) for seconds in (NOTICE_S - 0.5, NOTICE_S) * 3),
    *(("settle", None),) * 3,
    *(("offline", cpus) for cpus in (0, 1, 0b1100)),
    *(("fill", full) for full in (False, False, True)),
    *(("damage", name) for name in ("cpus", "assigned")),
    *((event, None) for event in ("repair", "restart", "create")),
)


class Life:
    """A container's life, with what must be true at each moment.

    Attributes:
        due_s: when the notice that lasts must end; None where none lasts.
        full: whether the disk takes nothing.
        damaged: whether another program has written a file since the last look without an event.
    """

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        self.due_s: float | None = None
        self.full = False
        self.damaged = False
        self._write = files.write_atomically
        with mock.patch.object(files, "write_atomically", self.write):
            self.node.create(f"0-{MOST - 1}")

    def write(self, path: Path, data: bytes, *rest: Any, **options: Any) -> None:
        if self.full:
            raise HostFileError(str(path), "cannot be written", "tidy up")
        self._write(path, data, *rest, **options)
        self.node.note()

    def happen(self, event: str, value: Any) -> None:
        """Let an event happen, and check what holds after it."""
        ends = len(self.node.narrowed)
        with mock.patch.object(files, "write_atomically", self.write):
            getattr(self, event)(value)
            self.node.look()
        ended = self.node.narrowed[ends:]
        # Exactly when it is due, and as soon as the role looks.
        if self.due_s is not None and self.due_s <= self.node.now_s:
            assert [cpus for _, _, cpus in ended] == [str(self.own.assigned)]
            self.due_s = None
        else:
            assert ended == []
        if self.own.settled and not self.full:
            self.assert_told()

    def assert_told(self) -> None:
        """Check that the folder tells what the kernel has, and what leaves."""
        if self.damaged:
            if self.own.leaving:
                # Time would pass.
                return
            with mock.patch.object(files, "write_atomically", self.write):
                self.node.look(30.0)
            self.damaged = False
        cpus, assigned, change = self.node.told
        assert (cpus, assigned) == (str(self.own.in_force), str(self.own.assigned))
        assert ("@" in change) == bool(self.own.leaving)
        assert self.node.read() == self.node.seen[-1]

    @property
    def own(self) -> Any:
        return self.node.own[REF]

    def resize(self, count: int) -> None:
        if not self.own.settled:
            # The manager refuses it.
            return
        before = self.own.assigned
        assigned = CPUSet(range(count))
        self.node.resize(str(assigned), settled=True)
        if not self.own.leaving:
            self.due_s = None
        elif self.due_s is None or assigned != before:
            self.due_s = self.node.now_s + NOTICE_S

    def wait(self, seconds: float) -> None:
        self.node.now_s += seconds

    def settle(self, _: None) -> None:
        self.node.change(settled=True)

    def offline(self, cpus: int) -> None:
        gone = CPUSet(cpu for cpu in range(MOST) if cpus >> cpu & 1)
        self.node.change(in_force=(self.own.assigned | self.own.leaving) - gone)

    def repair(self, _: None) -> None:
        self.node.keeper.repaired([REF])

    def restart(self, _: None) -> None:
        self.node.restart()
        if self.due_s is not None:
            self.due_s = self.node.now_s + NOTICE_S

    def create(self, _: None) -> None:
        assert (self.node.keeper.prepare(REF) is None) <= self.full

    def fill(self, full: bool) -> None:
        self.full = full

    def damage(self, name: str) -> None:
        (self.node.path / name).write_text("damaged")
        self.damaged = True


@examples(100)
@given(events=st.lists(st.sampled_from(EVENTS), min_size=20, max_size=60))
def test_notices_keep_their_time_and_folders_tell_the_truth(
    events: list[tuple[str, Any]],
) -> None:
    with folders.folder() as folder:
        life = Life(folder)
        for event, value in events:
            life.happen(event, value)
