"""Wake-up latency of a process beside busy neighbours, under the CPU manager's policies.

The synthetic workload for phase 2 of the CPU Manager proposal (kubernetes/community#654): a
Guaranteed pod wakes up each millisecond, and best-effort pods use all the CPU time that they can
get. Real processes run in real cgroups, which the agent writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.documents import Times, table
from cpupool.agent.setup import Setup
from cpupool.commands.demo.live import LiveNode
from cpupool.core.errors import HostError
from cpupool.host.sysfs import Sysfs
from cpupool.local.cgroups import RealCgroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

IMAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "images" / "wakeups.svg"
POLICIES: Final = {
    "none": "cpuManager: {policy: none}",
    "static": "cpuManager: {policy: static, reserved: 1}",
}
BUSY: Final = 4
WAKE_UPS: Final = 10_000
PERIOD_S: Final = 0.001
_POINTS: Final = 200
_STYLES: Final = {"none": ("#d55e00", "--"), "static": ("#0072b2", "-")}
_SPIN: Final = "while True: pass"
_MEASURE: Final = f"""
import json, sys, time
late_us = []
for _ in range({WAKE_UPS}):
    before_s = time.monotonic()
    time.sleep({PERIOD_S})
    late_us.append(round((time.monotonic() - before_s - {PERIOD_S}) * 1e6, 1))
json.dump(late_us, sys.stdout)
"""
"""Prints by how many microseconds each wake-up was late."""


def wakeups(tell: Callable[[str], None]) -> str:
    """Return a table of the latencies by policy; draw their distributions into `IMAGE`."""
    try:
        found = dict(_measured(tell))
    except HostError as reason:
        return f"Not measured: {reason}"
    IMAGE.write_bytes(_drawn(found))
    rows = [(policy, _spread(latencies_us)) for policy, latencies_us in found.items()]
    return table(("policy", "median / 99th percentile / maximum"), rows)


def _measured(tell: Callable[[str], None]) -> Iterator[tuple[str, Sequence[float]]]:
    cpus = Sysfs.at(Path("/sys")).topology().online
    for policy, text in POLICIES.items():
        tell(f"{WAKE_UPS} wake-ups beside {BUSY} busy pods, policy {policy}")
        with (
            tempfile.TemporaryDirectory(prefix="cpl-", dir="/tmp") as folder,
            RealCgroups.open("bench", cpus) as place,
        ):
            config = Path(folder, "etc")
            config.mkdir()
            pool = f'pools:\n  default: {{cpus: "{cpus}"}}\n{text}\n'
            (config / "poolconfig-bench.yaml").write_text(pool)
            with LiveNode(Path(folder), place, Setup(config), {}) as live:
                yield policy, _latencies_us(live, place)


def _latencies_us(live: LiveNode, place: RealCgroups) -> Sequence[float]:
    for number in range(BUSY):
        live.run_pod(_pod(f"busy-{number}", {}))
    live.run_pod(_pod("waking", {"cpu": "1", "memory": "64Mi"}))
    live.settled_rows()
    with ExitStack() as running:
        for process in live.node.processes():
            if process.container and process.pod.name != "waking":
                running.enter_context(_in_cgroup(place, process.instance.cgroup, _SPIN))
        (waking,) = (
            process
            for process in live.node.processes()
            if process.container and process.pod.name == "waking"
        )
        measuring = running.enter_context(_in_cgroup(place, waking.instance.cgroup, _MEASURE))
        out, _ = measuring.communicate()
    latencies_us: list[float] = json.loads(out)
    return latencies_us


@contextmanager
def _in_cgroup(place: RealCgroups, cgroup: str, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code in a container's cgroup."""
    # It begins once it is in the cgroup.
    command = [sys.executable, "-c", f"input()\n{code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            place.enter(cgroup, process.pid)
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def _pod(name: str, limits: Mapping[str, str]) -> dict[str, object]:
    container = {"name": "main", "resources": {"limits": dict(limits)}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def _spread(latencies_us: Sequence[float]) -> str:
    times = Times.of_values([latency_us / 1000 for latency_us in latencies_us])
    return times.shown(float("inf"))


def _drawn(found: Mapping[str, Sequence[float]]) -> bytes:
    """Draw the share of wake-ups that are later than a time, for each policy."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for policy, latencies_us in found.items():
        ordered = sorted(latencies_us)
        count = len(ordered)
        # Logarithmic steps: the few late ones matter most.
        ranks = sorted({int(count - count ** (step / _POINTS)) for step in range(_POINTS + 1)})
        colour, stroke = _STYLES[policy]
        late = [(count - rank) / count for rank in ranks]
        axes.plot([ordered[rank] for rank in ranks], late, stroke, color=colour, label=policy)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("wake-up latency (µs)")
    axes.set_ylabel("share of wake-ups that are later")
    axes.grid(alpha=0.3)
    axes.legend(title="CPU manager policy")
    written = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cpupool", "svg.fonttype": "none"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()
