"""Processes of a measurement in the containers of a live node, and the picture of their latencies.

Where the machine lacks a CPU that a measurement needs, the cgroups are emulated: the agent decides
and writes the same, and a process runs on those of its CPUs that are there.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.processes import PATIENCE_S
from cpupool.agent.setup import Setup
from cpupool.commands.demo.live import LiveNode
from cpupool.core.cpuset import CPUSet
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import Sysfs
from cpupool.local.cgroups import EmulatedCgroups, RealCgroups
from cpupool.telemetry import log
from tests.machines import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cpupool.core.workloads import Pod
    from cpupool.local.cgroups import Cgroups
    from cpupool.local.pods import ContainerProcess

PAUSE_S: Final = 0.1
"""The time after each action beside a measurement."""
IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
NONE: Final = "policy: none"
STATIC: Final = "policy: static, reserved: {reserved}"
_OWNER: Final = "owner"
_CONTAINER: Final = "main"
_ONE_CPU: Final = {"cpu": "1", "memory": "64Mi"}
_LOOK_S: Final = 0.002
_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class LoadedNode:
    """A live node with the agent, a pod that requests one CPU, and best-effort pods beside it.

    Attributes:
        live: the node.
        place: its cgroups.
        owner: the pod that requests one CPU.
        cpus: the CPUs of all containers.
        system: the CPUs for the agent, and for what plays the kubelet and the runtime.
    """

    live: LiveNode
    place: Cgroups
    owner: Pod
    cpus: CPUSet
    system: CPUSet

    def measured(
        self,
        command: Sequence[str],
        beside: Sequence[str],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Run a command in the owner, and another one in each pod beside it.

        Each begins when it can read a line. The owner's begins last.

        Args:
            command: the owner's.
            beside: that of all others, which writes a line when it has begun.
            meanwhile: called again and again until the owner's ends, with a pause after each call.

        Returns:
            What the owner's command has written.
        """
        with ExitStack() as stack, tempfile.TemporaryFile() as out:
            stack.enter_context(_threads_on(self.system))
            containers = [each for each in self.live.node.processes() if each.container]
            (owner,) = (each for each in containers if each.pod.name == _OWNER)
            for process in [
                stack.enter_context(self._running(other, beside, subprocess.PIPE))
                for other in containers
                if other is not owner
            ]:
                assert process.stdout
                process.stdout.readline()
            process = stack.enter_context(self._running(owner, command, out))
            while process.poll() is None:
                meanwhile()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PAUSE_S)
            assert process.returncode == 0, command
            out.seek(0)
            return out.read()

    def resize(self, cpu: int) -> None:
        """Resize the owner in place, and wait until it has its CPUs, and no other pod has them."""
        self.live.resize(self.owner, _CONTAINER, str(cpu))

        def done() -> bool:
            if self.live.node.resizing():
                self.live.node.try_again()
            return len(self.live.own_cpus(self.owner)[_CONTAINER]) == cpu

        _until(done)
        self.await_own()

    def await_own(self) -> None:
        """Wait until the owner runs on the CPUs that it owns, and every other pod on all others."""
        own = self.live.own_cpus(self.owner)[_CONTAINER]

        def moved() -> bool:
            return all(
                self._cpus(each) == (own if each.pod.name == _OWNER else self.cpus - own)
                for each in self.live.node.processes()
                if each.container
            )

        _until(moved)

    def _cpus(self, process: ContainerProcess) -> CPUSet:
        node = self.live.node
        return CgroupFS(node.root.cgroup, node.cgroup_root).effective(node.path_of(process))

    @contextmanager
    def _running(
        self, container: ContainerProcess, command: Sequence[str], out: IO[bytes] | int
    ) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out) as process:
            try:
                # It has inherited the CPUs of this thread, which a cgroup narrows and never widens.
                os.sched_setaffinity(process.pid, online())
                self.place.enter(container.instance.cgroup, process.pid)
                assert process.stdin
                process.stdin.write(b"\n")
                process.stdin.flush()
                yield process
            finally:
                process.kill()


def show(measure: Callable[[Callable[[str], None]], str]) -> None:
    """Measure and print a table; the progress goes to stderr."""
    # Each resize that the agent has seen and the runtime has not asked for yet is a warning.
    log.set_up(logging.ERROR)
    print(measure(lambda line: print(line, file=sys.stderr, flush=True)))


def other_work() -> tuple[str, str]:
    """Return a row about the other work of the machine."""
    return "load average of the machine before", f"{os.getloadavg()[0]:.1f}"


def online() -> CPUSet:
    """Return the CPUs of this machine."""
    return Sysfs.at(Path("/sys")).topology().online


@contextmanager
def loaded_node(cpu_manager: str, cpus: CPUSet, others: int) -> Iterator[LoadedNode]:
    """Run a node with a pod that requests one CPU.

    Args:
        cpu_manager: what the pool file says of the CPU manager. `{reserved}` in it becomes the
            first CPU.
        cpus: the CPUs of all its containers.
        others: how many best-effort pods there are.

    Raises:
        HostError: this machine's cgroups cannot be used.
    """
    with (
        tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as name,
        _placed(Path(name), cpus) as (place, sysfs),
    ):
        config, reserved = Path(name, "etc"), CPUSet.of(cpus.first)
        config.mkdir()
        chosen = cpu_manager.format(reserved=f'"{cpus.first}-{cpus.first}"')
        pools = f'pools:\n  default: {{cpus: "{cpus}"}}\ncpuManager: {{{chosen}}}\n'
        (config / "poolconfig-bench.yaml").write_text(pools)
        chooses = chosen != cpu_manager
        with LiveNode(Path(name), place, Setup(config), {}, sysfs, nri=chooses) as live:
            if chooses:
                live.await_plugin()
            for number in range(others):
                live.run_pod(_pod(f"other-{number}", {}))
            owner = live.run_pod(_pod(_OWNER, _ONE_CPU))
            node = LoadedNode(live, place, owner, cpus, reserved if chooses else cpus)
            if chooses:
                node.await_own()
            yield node


@contextmanager
def _placed(folder: Path, cpus: CPUSet) -> Iterator[tuple[Cgroups, Path]]:
    """Return cgroups with these CPUs, and the sysfs of their machine."""
    if cpus <= online():
        with RealCgroups.open("bench", cpus) as real:
            yield real, Path("/sys")
    else:
        machine = Machine(cores=len(cpus)).write(folder)
        with EmulatedCgroups(folder, cpus, "this machine has fewer CPUs") as emulated:
            yield emulated, machine.sys


@contextmanager
def _threads_on(cpus: CPUSet) -> Iterator[None]:
    """Keep the threads of this process on some CPUs, as the agent's pod has no CPUs of its own."""
    before = os.sched_getaffinity(0)
    _move_threads(cpus)
    try:
        yield
    finally:
        _move_threads(before)


def _move_threads(cpus: CPUSet | set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def _pod(name: str, limits: Mapping[str, str]) -> dict[str, object]:
    container = {"name": _CONTAINER, "resources": {"limits": dict(limits)}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the agent has not moved the containers"
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Curve:
    """How a curve looks."""

    colour: str
    stroke: str
    width: float = 1.5


def drawn(
    found: Mapping[str, Sequence[float]], curves: Mapping[str, Curve], what: str, unit: str
) -> bytes:
    """Draw the share of values that are above a value, as SVG.

    Args:
        found: the name of each curve, and its values.
        curves: how each curve looks.
        what: what the values are, in the plural.
        unit: the quantity of a value, with its unit.
    """
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for name, values in found.items():
        ordered = sorted(values)
        count = len(ordered)
        # Logarithmic steps: the few late ones matter most.
        ranks = sorted({int(count - count ** (step / _POINTS)) for step in range(_POINTS + 1)})
        curve = curves[name]
        above = [(count - rank) / count for rank in ranks]
        axes.plot(
            [ordered[rank] for rank in ranks],
            above,
            curve.stroke,
            color=curve.colour,
            linewidth=curve.width,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel(f"share of {what}")
    axes.grid(alpha=0.3)
    axes.legend(title="CPU manager policy")
    written = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cpupool", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
