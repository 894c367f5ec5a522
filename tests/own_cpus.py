"""A node with a container whose own CPUs change, in virtual time, and the role that tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cpupool.agent.own_cpus_keeper import OwnCPUsKeeper
from cpupool.core.cpuset import CPUSet
from cpupool.core.mounts import Mount
from cpupool.core.workloads import ContainerRef
from cpupool.host.own_folders import OwnFolders
from cpupool.host.root import HostRoot
from cpupool.manager.resizing import OwnCPUs
from tests import builders
from tests.events import Heard

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cpupool.core.workloads import Pod

POD = builders.pod("dpdk", builders.container("main"))
UID = POD.cgroup_uid
REF = ContainerRef(UID, "main")
NOTICE_S = 5.0
BEGUN_S = 1_795_000_000.0


@dataclass
class Node:
    """A node whose manager decides at once, and whose kernel follows when the test says so.

    It has the `Owners` of its keeper.

    Attributes:
        own: what each container has.
        there: the pods that are there; None while they are not known.
        threads: the CPUs of each thread of the container; empty if none is in sight.
        looked_s: when the keeper has looked at them.
        narrowed: (time, container, CPUs) of each end of a notice.
        seen: each document that a reader of the container has seen, without its repetitions.
        announced: how many notices have begun.
    """

    folder: Path
    now_s: float = 1000.0
    own: dict[ContainerRef, OwnCPUs] = field(default_factory=dict)
    there: set[str] | None = field(default_factory=lambda: {UID})
    threads: tuple[str, ...] = ()
    looked_s: list[float] = field(default_factory=list)
    narrowed: list[tuple[float, str, str]] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)
    seen: list[dict[str, Any]] = field(default_factory=list)
    listed: bool = True
    announced: int = 0

    def __post_init__(self) -> None:
        self.root = HostRoot.under(self.folder)
        self.restart()

    def restart(self) -> None:
        """Start another agent, which knows what is recorded."""

        def wall_s() -> float:
            return BEGUN_S + self.now_s

        self.keeper = OwnCPUsKeeper(
            self,
            OwnFolders(self.root, self.heard, wall_s=wall_s),
            announced=self.count,
            telemetry=builders.telemetry(events=self.heard),
            now_s=lambda: self.now_s,
            wall_s=wall_s,
        )

    def create(self, cpus: str, *, notice_s: float = NOTICE_S, ref: ContainerRef = REF) -> None:
        """Create a container, as the runtime does after the agent's answer."""
        own = CPUSet.parse(cpus)
        self.own[ref] = OwnCPUs(own, own, own, CPUSet(), notice_s)
        mount = self.keeper.prepare(ref)
        path = f"/var/lib/cpupool/self/{ref.pod}/{ref.name}"
        assert mount == Mount("/run/cpupool/self", path)
        self.look()

    def resize(self, cpus: str, *, settled: bool | None = None) -> float:
        """Decide that the container must have other CPUs, as the manager does, and look."""
        before, assigned = self.own[REF], CPUSet.parse(cpus)
        come = assigned - before.in_force
        self.own[REF] = replace(
            before,
            assigned=assigned,
            in_force=before.in_force | assigned,
            leaving=before.in_force - assigned,
            settled=not come if settled is None else settled,
        )
        return self.look()

    def change(self, **fields: Any) -> None:
        """Change facts of the container, and let the role look."""
        parsed: dict[str, Any] = {
            name: CPUSet.parse(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        self.own[REF] = replace(self.own[REF], **parsed)
        self.look()

    def own_cpus(self) -> Mapping[ContainerRef, OwnCPUs]:
        return dict(self.own)

    def needs(self, _ref: ContainerRef, cpus: CPUSet) -> bool | None:
        self.looked_s.append(self.now_s)
        if not self.threads:
            return None
        return any(CPUSet.parse(each) <= cpus for each in self.threads)

    def pod(self, uid: str) -> Pod | None:
        return POD if self.listed and uid == UID else None

    def remaining(self) -> set[str] | None:
        return self.there

    def count(self) -> None:
        self.announced += 1

    def narrow(self, ref: ContainerRef, assigned: CPUSet, leaving: CPUSet) -> bool:
        own = self.own[ref]
        self.narrowed.append((self.now_s, ref.name, str(assigned)))
        if (own.assigned, own.leaving) != (assigned, leaving):
            return False
        self.own[ref] = replace(own, in_force=assigned, leaving=CPUSet(), settled=False)
        return True

    def look(self, after_s: float = 0.0) -> float:
        """Let time pass and the role step; return the seconds to its next step."""
        self.now_s += after_s
        next_s = self.keeper.step()
        self.note()
        return next_s

    def note(self) -> None:
        """Read as the application does: complete, and never an earlier generation."""
        if not (self.path / "cpus.json").exists():
            return
        found = self.read()
        if self.seen and found["generation"] == self.seen[-1]["generation"]:
            assert found == self.seen[-1]
            return
        assert not self.seen or found["generation"] > self.seen[-1]["generation"]
        self.seen.append(found)

    @property
    def path(self) -> Path:
        return self.root.own_folders / REF.pod / REF.name

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "cpus.json").read_text())
        return found

    @property
    def told(self) -> tuple[str, str, str]:
        """What is in force, what is assigned, and the change: `shrink -7`, `grow +6-7`."""
        found = self.read()
        for name in ("cpus", "assigned"):
            assert (self.path / name).read_text() == f"{found[name]}\n"
        change = found["change"]
        if change is None:
            return found["cpus"], found["assigned"], ""
        words = [change["reason"]]
        words += [f"-{change['removed']}"] if change["removed"] else []
        words += [f"+{change['added']}"] if change["added"] else []
        if "notBeforeMonotonic" in change:
            words.append(f"@{change['notBeforeMonotonic']:g}")
        return found["cpus"], found["assigned"], " ".join(words)

    @property
    def generations(self) -> int:
        """How many generations the container has seen."""
        first, last = self.seen[0]["generation"], self.seen[-1]["generation"]
        return int(last - first + 1)
