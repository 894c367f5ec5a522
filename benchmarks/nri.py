"""The time in which the NRI plugin answers a runtime that asks for many containers at once."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.adapter import NRIRuntime
from tests import builders
from tests.machines import MACHINES
from tests.nri_agents import plugin_on
from tests.nri_pods import Container, Pod
from tests.nri_runtime import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from benchmarks.rows import Row
    from cpupool.core import workloads
    from tests.nri_runtime import Plugin

PODS = (100, 250)
PARALLEL = 100
ROUNDS = 50


def nri() -> Iterator[Row]:
    """Answers to CreateContainer, alone and a hundred in one write."""
    for pods in PODS:
        with tempfile.TemporaryDirectory(prefix="cpl-") as folder:
            socket = Path(folder, "nri.sock")
            with FakeRuntime(socket) as runtime:
                command = [sys.executable, "-m", "benchmarks.nri", str(socket), str(pods)]
                with subprocess.Popen(command) as plugin:
                    connected = runtime.welcome()
                    shown = f"NRI answer, {pods} pods of 2 containers"
                    yield (f"{shown}, one at a time", _answers(connected, 1), "-")
                    yield (
                        f"{shown}, {PARALLEL} at one time",
                        _answers(connected, PARALLEL),
                        "10 ms",
                    )
                    plugin.send_signal(signal.SIGTERM)


def _answers(plugin: Plugin, at_once: int) -> str:
    taken_ms: list[float] = []
    # This process plays a runtime, and those are not written in Python.
    gc.disable()
    for turn in range(ROUNDS):
        containers = [
            Container(Pod(f"pod{number}-uid"), f"{at_once}-{turn}-{number}", "c")
            for number in range(at_once)
        ]
        started_s = time.perf_counter()

        def answered(_: Future[Any], started_s: float = started_s) -> None:
            taken_ms.append((time.perf_counter() - started_s) * 1000)

        answers = plugin.create_many(containers)
        for answer in answers:
            answer.add_done_callback(answered)
        for answer in answers:
            answer.result()
        for container in containers:
            plugin.remove(container)
            plugin.remove_sandbox(container.pod)
    gc.enable()
    ordered = sorted(taken_ms)
    p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def _serve(socket: Path, pods: int) -> None:
    """Run the role alone, as the agent does, until SIGTERM."""
    machine = MACHINES["laptop_4c8t"].topology()
    manager = Manager()
    manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("default", "0")), machine
    )
    manager.observe(pods=map(_pod, range(pods)))
    runtime = NRIRuntime(
        socket,
        manager.names,
        look=lambda: None,
        allows=lambda key, cpus: manager.snapshot().allows(key, cpus),
    )
    plugin = plugin_on(manager, runtime)
    # As the agent does.
    gc.freeze()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    loop = threading.Thread(target=plugin.run, args=(stop,))
    loop.start()
    stop.wait()
    plugin.wake()
    loop.join()


def _pod(number: int) -> workloads.Pod:
    containers = (
        replace(builders.container(name), id=ContainerID(f"{name}{number}")) for name in "ab"
    )
    return builders.pod(f"pod{number}", *containers, builders.container("c", running=False))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
