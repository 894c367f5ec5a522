"""The configurator puts the node's pool file in force, and each edit of it while pods run.

It is level-triggered: each look compares the pool files and the node's labels with those of the
last look, and an event only says *look now*. An edit that is refused changes nothing. The last good
pools stay in force, and their text is in a file for the next start of the agent.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cpupool.config import pool_selection, poolconfig
from cpupool.config.pool_file import PoolFile
from cpupool.config.pool_selection import Machine
from cpupool.config.poolconfig import Source
from cpupool.core.errors import (
    ConfigError,
    CPUPoolError,
    HostError,
    Location,
    Problem,
    errors_in,
    refuse_errors,
)
from cpupool.core.pools import NodePools
from cpupool.host import files
from cpupool.host.files import DirectoryWatch
from cpupool.host.installed_policies import find_policy
from cpupool.host.pool_files import LONGEST_FILE_BYTES, checked
from cpupool.host.record_file import SET_ASIDE, put_away
from cpupool.loops.step_loop import StepLoop
from cpupool.manager.usage import usage
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from cpupool.agent.ports import NodeLabels
    from cpupool.core.cpuset import CPUSet
    from cpupool.host.pool_files import PoolFiles
    from cpupool.host.usable_cpus import TopologySource
    from cpupool.loops.telemetry import Telemetry
    from cpupool.manager.manager import Manager
    from cpupool.manager.pool_edit_report import PoolDifference
    from cpupool.manager.usage import PoolUsage

log = logs.get(__name__)

NAME: Final = "configurator"
CONDITION: Final = "labels"
_CHECK_S: Final = 60.0
"""The time between two looks without an event."""

_NO_FILE: Final = PoolFile(
    name="no pool file matches this node",
    pools=NodePools(),
    node_selector={},
    locations={"": Location("no pool file")},
    warnings=(),
)
_NO_TEXT: Final = b""


@dataclass(frozen=True, slots=True)
class _View:
    """The facts from which a decision about the pools follows.

    Attributes:
        texts: file name → content.
        labels: the node's.
        online: the online CPUs while an edit is refused, because it may fit the machine later.
    """

    texts: Mapping[str, bytes]
    labels: Mapping[str, str]
    online: CPUSet | None


class Configurator(StepLoop):
    """The role that follows the pool files.

    Args:
        manager: takes the pools.
        pool_files: the pool files of the cluster.
        last_good: the file that keeps the text of the pools in force.
        labels: the node's labels, which choose the pool file.
        topology: the machine that the pools must fit.
        telemetry: takes a report of each edit, whether the newest is in force, and whether there
            are labels.
        changed: called when other pools are in force.
    """

    def __init__(
        self,
        manager: Manager,
        pool_files: PoolFiles,
        *,
        last_good: Path,
        labels: NodeLabels,
        topology: TopologySource,
        telemetry: Telemetry,
        changed: Callable[[], None],
    ) -> None:
        watch = DirectoryWatch(pool_files.folder, lambda _path: self.wake())
        super().__init__(partial(telemetry.health.beat, NAME), [watch])
        self._manager = manager
        self._pool_files = pool_files
        self._last_good = last_good
        self._labels = labels
        self._topology = topology
        self._events = telemetry.events
        self._metrics = telemetry.metrics
        self._health = telemetry.health
        self._changed = changed
        self._seen: _View | None = None
        self._in_force: bytes | None = None
        self._refused: tuple[str, ...] = ()

    def step(self) -> float:
        """Look at the files and the labels; return the seconds to the next step."""
        with logs.operation("config"):
            self.look()
        return _CHECK_S

    def look(self) -> None:
        """Put a new edit in force; report one that is refused, and keep the pools."""
        try:
            self.load()
        except ConfigError as error:
            self._refuse([str(problem) for problem in errors_in(error.problems)])
        except CPUPoolError as error:
            self._seen = None
            self._refuse([str(error)])

    def load(self) -> None:
        """Put in force what is new since the last look; do nothing without the node's labels.

        Raises:
            ConfigError: the pool files are refused, or their pools are unsafe on this machine.
            CPUPoolError: a file or the machine cannot be read.
        """
        labels = self._labels.labels()
        self._health.set(
            CONDITION,
            ok=labels is not None,
            message="this node's labels are not known; check --node-name and the API server",
        )
        if labels is None:
            return
        view = _View(
            texts=self._pool_files.read(),
            labels=dict(labels),
            online=self._topology.online() if self._refused else None,
        )
        if view == self._seen:
            return
        topology = self._topology.topology()
        self._seen = view
        problems: list[Problem] = []
        sources = itertools.starmap(Source.of, view.texts.items())
        machine = Machine(topology, view.labels)
        parsed = poolconfig.parse_all(sources, self._manager.names, problems, machine, find_policy)
        refuse_errors(problems)
        file = pool_selection.select(parsed, view.labels) or _NO_FILE
        if file.unusable:
            raise ConfigError([file.unusable])
        try:
            change = self._manager.reconfigure(file.pools, topology)
        except ConfigError as error:
            raise ConfigError(file.located(error.problems)) from error
        self._accept(file, view.texts.get(file.name, _NO_TEXT), change)

    def _accept(self, file: PoolFile, text: bytes, change: PoolDifference) -> None:
        """Log pools that have come into force, and keep their text."""
        self._metrics.config_valid(valid=True)
        if text == self._in_force and not self._refused:
            return
        for problem in (*file.warnings, *file.located(change.problems)):
            log.warning("pool file", problem=problem)
        news = _news(change, usage(self._manager.snapshot().facts))
        log.info("pool configuration applied", file=file.name, **news)
        before = self._in_force if self._in_force is not None else self._saved()
        if text != before or self._refused:
            message = (
                "; ".join(f"{what} {names}" for what, names in news.items())
                or "the pools are as they were"
            )
            self._events.node("CPUPoolConfigApplied", f"{file.name}: {message}.", warning=False)
        self._refused = ()
        self._in_force = text
        self._save(text)
        self._changed()

    def _refuse(self, problems: Sequence[str]) -> None:
        """Log an edit that is refused; after a start, take the last good pools instead."""
        self._metrics.config_valid(valid=False)
        if self._refused == tuple(problems):
            return
        self._refused = tuple(problems)
        for problem in problems:
            log.error("pool file", problem=problem)
        if self._in_force is None:
            self._fall_back()
        kept = self._kept()
        log.error("pool configuration refused", problems=len(problems), so=kept)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        self._events.node(
            "CPUPoolConfigInvalid",
            f"{problems[0]}{more}. Until it is corrected {kept}; `cpupool validate` shows every"
            " problem.",
        )

    def _kept(self) -> str:
        """Return which pools are in force while an edit is refused."""
        if not self._in_force:
            return "there are no pools"
        blocked = self._manager.snapshot().facts.blocked
        without = f", and no further container gets CPUs {blocked}" if blocked else ""
        return f"the last good pools stay{without}"

    def _fall_back(self) -> None:
        text = self._saved()
        if not text:
            return
        problems: list[Problem] = []
        try:
            source = Source.of(self._last_good.name, checked(str(self._last_good), text))
            # The pools stay, also without the package of their policy: pods own CPUs by it.
            parsed = poolconfig.parse_all(
                [source], self._manager.names, problems, find_policy=find_policy
            )
            refuse_errors(problems)
        except CPUPoolError as error:
            log.warning("last good pools cannot be used", file=self._last_good, error=error)
            self._events.node(SET_ASIDE, put_away(self._last_good, str(error)))
            return
        try:
            self._manager.reconfigure(parsed[0].pools, self._topology.topology(), again=True)
        except CPUPoolError as error:
            log.warning("last good pools cannot be used", file=self._last_good, error=error)
        else:
            log.warning("last good pools in force", file=self._last_good)
            self._in_force = text
            self._changed()

    def _saved(self) -> bytes:
        try:
            return files.read_first(self._last_good, LONGEST_FILE_BYTES + 1)
        except OSError:
            return _NO_TEXT

    def _save(self, text: bytes) -> None:
        try:
            self._last_good.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(self._last_good, text)
        except (OSError, HostError) as error:
            # Only a restart with a bad edit reads the text, so a full disk stops nothing now.
            log.warning("last good pools not kept", file=self._last_good, error=error)


def _news(change: PoolDifference, used: Iterable[PoolUsage]) -> dict[str, str]:
    """Return the changes of an edit, and the devices that stay with pods until they end."""
    draining = (f"{pool.name} ({pool.draining})" for pool in used if pool.draining)
    named = {
        "added": change.added,
        "removed": change.removed,
        "resized": change.resized,
        "draining": draining,
    }
    listed = {what: ", ".join(sorted(names)) for what, names in named.items()}
    listed["changed"] = ", ".join(change.cpu_manager)
    return {what: names for what, names in listed.items() if names}
