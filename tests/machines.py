"""The repository's own machines, synthesised: from a short description to a sysfs tree.

    MACHINES["telco_2s_2n_16c32t"].topology()            a CPUTopology, without any file
    written = MACHINES["laptop_4c8t"].write(tmp_path)     a tree in tmp_path/sys
    written.switch_off(CPUSet.of(3))                      as the kernel would

`python -m tests.machines NAME FOLDER` writes one by hand.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.host.sysfs import RecordedTree, Sysfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.topology import CPUTopology

_CPU = "devices/system/cpu"
_NODE = "devices/system/node"


@dataclass(frozen=True, slots=True)
class Thread:
    """One CPU and the numbers of what it belongs to, each counted over the whole machine.

    But `core_id` is counted anew on every socket, as on most machines.
    """

    cpu: int
    core: int
    core_id: int
    l3: int | None
    node: int
    die: int
    socket: int
    efficient: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as nested counts: so many of each inside one of the next larger.

    Attributes:
        sockets: packages.
        dies: per socket.
        nodes: NUMA nodes per die.
        l3: groups behind one L3 cache per node; 0 for a machine without L3.
        cores: per L3 group.
        threads: per core.
        adjacent: whether siblings have ids in a row (0,1) or lie half the machine apart (0,n+0).
        efficiency_cores: cores of one thread added to the last L3 group, which makes it hybrid.
        node_ids: the ids of the NUMA nodes, 0 to n-1 without; more than n add CPU-less nodes.
        offline: CPUs that are switched off from the start, in the list format.
    """

    sockets: int = 1
    dies: int = 1
    nodes: int = 1
    l3: int = 1
    cores: int = 1
    threads: int = 1
    adjacent: bool = False
    efficiency_cores: int = 0
    node_ids: tuple[int, ...] = ()
    offline: str = ""

    def layout(self) -> tuple[Thread, ...]:
        """Place every thread."""
        counts = (self.sockets, self.dies, self.nodes, self.l3 or 1, self.cores)
        cores = list(itertools.product(*map(range, counts)))
        step, stride = (self.threads, 1) if self.adjacent else (1, len(cores))
        placed = [
            self._thread(core * step + thread * stride, core, place)
            for core, place in enumerate(cores)
            for thread in range(self.threads)
        ]
        first = len(placed)
        placed += [
            self._thread(first + extra, len(cores) + extra, cores[-1], efficient=True)
            for extra in range(self.efficiency_cores)
        ]
        return tuple(sorted(placed, key=lambda thread: thread.cpu))

    def _thread(
        self, cpu: int, core: int, place: tuple[int, ...], *, efficient: bool = False
    ) -> Thread:
        socket, die, node, l3, _ = place
        die += socket * self.dies
        node += die * self.nodes
        return Thread(
            cpu=cpu,
            core=core,
            core_id=core - socket * self.dies * self.nodes * (self.l3 or 1) * self.cores,
            l3=l3 + node * self.l3 if self.l3 else None,
            node=self.node_ids[node] if self.node_ids else node,
            die=die,
            socket=socket,
            efficient=efficient,
        )

    def files(self, off: CPUSet) -> dict[str, str]:
        """Give every file by its path below `/sys`, as the kernel shows them with some CPUs off."""
        layout = self.layout()
        everything = CPUSet(thread.cpu for thread in layout)
        files = {
            f"{_CPU}/present": f"{everything}",
            f"{_CPU}/possible": f"{everything}",
            f"{_CPU}/online": f"{everything - off}",
            f"{_CPU}/offline": f"{everything & off}",
            f"{_CPU}/isolated": "",
        }
        # The boot CPU of an x86 machine cannot be switched off and has no such file.
        files |= {f"{_CPU}/cpu{cpu}/online": f"{int(cpu not in off)}" for cpu in everything if cpu}
        running = [thread for thread in layout if thread.cpu not in off]
        for thread in running:
            files |= _cpu_files(thread, running)
        files |= _node_files(running, self.node_ids or sorted({thread.node for thread in layout}))
        if self.efficiency_cores:
            kinds = {"cpu_core": False, "cpu_atom": True}
            files |= {
                f"devices/{kind}/cpus": str(_where(running, "efficient", efficient))
                for kind, efficient in kinds.items()
            }
        return files

    def without(self, cpus: str) -> Machine:
        """Give the machine with other CPUs switched off, in the list format."""
        return replace(self, offline=cpus)

    @cache  # noqa: B019  # machines are few, and live as long as the tests
    def topology(self) -> CPUTopology:
        """Read this machine, without writing it."""
        files = self.files(CPUSet.parse(self.offline))
        return Sysfs(RecordedTree("synthesised", files)).topology()

    def unplugged(self, cpus: str) -> CPUTopology:
        """Read this virtual machine after it has lost CPUs, in the list format."""
        lost = CPUSet.parse(cpus)
        files = self.files(lost)
        files[f"{_CPU}/present"] = files[f"{_CPU}/online"]
        return Sysfs(RecordedTree("synthesised", files)).topology()

    def having_lost(self, cpus: CPUSet) -> CPUTopology:
        """Read this machine after CPUs went offline, with what is remembered of them."""
        return self.without(str(cpus)).topology().remembering(self.topology())

    def write(self, folder: Path) -> WrittenMachine:
        """Write the tree below `folder`/sys."""
        written = WrittenMachine(self, folder / "sys", CPUSet.parse(self.offline))
        written.sys.mkdir(parents=True)
        folders, files = self._listed()
        # Hundreds of tests do this: with pathlib, it takes twice the time.
        for path in folders:
            os.mkdir(f"{written.sys}/{path}")  # noqa: PTH102
        for path, text in files.items():
            with open(f"{written.sys}/{path}", "xb", buffering=0) as file:  # noqa: PTH123
                file.write(text)
        return written

    @cache  # noqa: B019  # as above
    def _listed(self) -> tuple[list[str], dict[str, bytes]]:
        """Return the folders below `/sys`, each after the one that it lies in, and the files."""
        texts = self.files(CPUSet.parse(self.offline))
        folders = {str(parent) for path in texts for parent in PurePath(path).parents}
        return sorted(folders - {"."}), {path: f"{text}\n".encode() for path, text in texts.items()}


@dataclass(slots=True)
class WrittenMachine:
    """A machine in a folder, whose CPUs can be switched off and on.

    Attributes:
        machine: its description.
        sys: the folder that stands for `/sys`.
        offline: the CPUs that are off now.
    """

    machine: Machine
    sys: Path
    offline: CPUSet

    def switch_off(self, cpus: CPUSet) -> None:
        """Take CPUs offline: their topology and caches vanish, and others lose them as siblings."""
        self._show(self.offline | cpus)

    def switch_on(self, cpus: CPUSet) -> None:
        """Bring CPUs back."""
        self._show(self.offline - cpus)

    def topology(self) -> CPUTopology:
        """Read the tree."""
        return Sysfs.at(self.sys).topology()

    def _show(self, offline: CPUSet) -> None:
        files = self.machine.files(offline)
        # The list of online CPUs is written first where CPUs go and last where they come, so
        # that a reader never sees an online CPU without its files.
        listed = f"{_CPU}/online"
        going = self.offline <= offline
        order = sorted(files, key=lambda path: (path == listed) is not going)
        for path in order:
            _put(self.sys / path, f"{files[path]}\n")
        for cpu in offline:
            shutil.rmtree(self.sys / f"{_CPU}/cpu{cpu}/topology", ignore_errors=True)
            shutil.rmtree(self.sys / f"{_CPU}/cpu{cpu}/cache", ignore_errors=True)
        self.offline = offline


MACHINES: Mapping[str, Machine] = {
    "single_cpu": Machine(),
    "laptop_4c8t": Machine(cores=4, threads=2, adjacent=True),
    "arm_no_smt": Machine(sockets=2, cores=8, l3=0),
    "hybrid": Machine(cores=4, threads=2, adjacent=True, efficiency_cores=8),
    "telco_2s_2n_16c32t": Machine(sockets=2, cores=8, threads=2),
    "telco_with_offline": Machine(sockets=2, cores=8, threads=2, offline="5,16-19"),
    "sparse_nodes": Machine(sockets=2, nodes=2, cores=2, node_ids=(0, 8, 33, 45, 250)),
    "two_dies": Machine(sockets=2, dies=2, cores=4, threads=2),
    "smt4": Machine(sockets=2, cores=4, threads=4, adjacent=True),
    "epyc_like": Machine(sockets=2, nodes=2, l3=2, cores=4, threads=2),
    "epyc_256": Machine(sockets=2, nodes=4, l3=2, cores=8, threads=2),
}


def _cpu_files(thread: Thread, running: list[Thread]) -> dict[str, str]:
    core = _where(running, "core", thread.core)
    die = _where(running, "die", thread.die)
    socket = _where(running, "socket", thread.socket)
    folder = f"{_CPU}/cpu{thread.cpu}"
    ids = {
        "core_id": thread.core_id,
        "die_id": thread.die,
        "physical_package_id": thread.socket,
    }
    files = {f"{folder}/topology/{name}": f"{number}" for name, number in ids.items()}
    for name, cpus in {
        "core_cpus": core,
        "thread_siblings": core,
        "die_cpus": die,
        "package_cpus": socket,
        "core_siblings": socket,
    }.items():
        files[f"{folder}/topology/{name}"] = _mask(cpus)
        files[f"{folder}/topology/{name}_list"] = str(cpus)
    caches = [(1, "Data", core), (1, "Instruction", core), (2, "Unified", core)]
    if thread.l3 is not None:
        caches.append((3, "Unified", _where(running, "l3", thread.l3)))
    for index, (level, kind, cpus) in enumerate(caches):
        cache = f"{folder}/cache/index{index}"
        files[f"{cache}/level"] = str(level)
        files[f"{cache}/type"] = kind
        files[f"{cache}/shared_cpu_map"] = _mask(cpus)
        files[f"{cache}/shared_cpu_list"] = str(cpus)
    return files


def _node_files(running: list[Thread], node_ids: Iterable[int]) -> dict[str, str]:
    ordered = sorted(node_ids)
    files = {f"{_NODE}/online": ",".join(map(str, ordered))}
    for node in ordered:
        cpus = _where(running, "node", node)
        distances = (10 if other == node else 21 for other in ordered)
        files[f"{_NODE}/node{node}/cpumap"] = _mask(cpus)
        files[f"{_NODE}/node{node}/cpulist"] = str(cpus)
        files[f"{_NODE}/node{node}/distance"] = " ".join(map(str, distances))
    return files


def _where(threads: list[Thread], field: str, value: int) -> CPUSet:
    return CPUSet(thread.cpu for thread in threads if getattr(thread, field) == value)


def _mask(cpus: CPUSet) -> str:
    words = Counter({0: 0})
    for cpu in cpus:
        words[cpu // 32] += 1 << cpu % 32
    return ",".join(f"{words[word]:08x}" for word in reversed(range(max(words) + 1)))


def _put(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, and leave it if it is right."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


if __name__ == "__main__":
    MACHINES[sys.argv[1]].write(Path(sys.argv[2]))
