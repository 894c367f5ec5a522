"""An agent that writes down how much CPU time each kind of its work takes.

    python -m benchmarks.watched agent ...

It is the `cpupool` command, with clocks around the methods of `KINDS`. The time of a kind is that
of its own calls, without the kinds that they call: what all of them have used together, the agent
has used. The clocks themselves take some microseconds for a call.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import threading
import time
from collections import defaultdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from cpupool.__main__ import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R = TypeVar("R")

WRITTEN: Final = "CPUPOOL_WATCHED"
"""The variable that names the file; it is written at the end of the agent."""
KINDS: Final = {
    "sweep: facts": ("manager.learner:Learner.learn",),
    "sweep: cgroups read": ("enforce.directories:Directories.read",),
    "sweep: CPUs": ("enforce.sweep:Sweep._put_right",),
    "sweep: quotas and other goals": ("enforce.repair:Keeper.keep",),
    "sweep: notices": ("enforce.announcer:Announcer.notices",),
    "sweep: what else": ("enforce.sweep:Sweep.look",),
    "after a sweep": ("agent.cpusetter:CPUSetter._tell", "agent.cpusetter:CPUSetter._due"),
    "watches looked at": ("agent.cgroup_news:CgroupNews.ensure",),
    "NRI message": ("runtime.nri.conversation:Conversation.turn",),
    "NRI message: facts": ("runtime.nri.conversation:Conversation._tell",),
    "NRI message: answers": ("runtime.nri.conversation:Conversation._answer_waiting",),
    "decisions": ("manager.manager:Manager.snapshot",),
    "record": ("host.choice_record:ChoiceRecord.decided",),
    "watch line": ("kube.reflector:Reflector._take",),
    "watch line: JSON": ("kube.connection:_decoded",),
    "cgroup event": ("host.inotify:FolderEvents._take",),
    "status": ("host.status_file:StatusFile.publish",),
    "metrics": ("agent.reporter:Reporter._measure",),
    "mounts": ("agent.mount_keeper:MountKeeper._look",),
    "memory nodes": ("agent.memory_keeper:MemoryKeeper.turn",),
    "devices: a look": ("agent.device_manager:DeviceManager._look",),
    "devices: an answer": ("rpc.serving:_Handler.accept",),
    "writers into pods": ("agent.pod_writer:PodWriter.step",),
    "topology object": ("agent.topology_reporter:TopologyReporter.step",),
    "machine": ("agent.machine_watcher:MachineWatcher.look",),
    "gRPC channel": ("rpc.channel:Channel.ask", "rpc.channel:Channel.close"),
    "probe": ("telemetry.server:_Handler.answer",),
    "supervisor": ("telemetry.health:Health.stuck",),
}


class Clocks:
    """Adds up calls and CPU time by kind; any thread may use it."""

    def __init__(self) -> None:
        self._within = threading.local()
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, int] = defaultdict(int)

    def around(self, kind: str, call: Callable[P, R]) -> Callable[P, R]:
        """Return a call with a clock around it."""

        @wraps(call)
        def timed(*given: P.args, **named: P.kwargs) -> R:
            within = self._within
            outer: list[float] | None = getattr(within, "below", None)
            below = within.below = [0.0]
            began_s = time.thread_time()
            try:
                return call(*given, **named)
            finally:
                took_s = time.thread_time() - began_s
                within.below = outer
                if outer is not None:
                    outer[0] += took_s
                self._used_s[kind] += took_s - below[0]
                self._calls[kind] += 1

        return timed

    def collect(self, phase: str, info: Mapping[str, int]) -> None:
        """Take the calls of the garbage collector, which comes in between any two lines."""
        if phase == "start":
            self._within.collects_s = time.thread_time()
            return
        took_s = time.thread_time() - self._within.collects_s
        below: list[float] | None = getattr(self._within, "below", None)
        if below is not None:
            below[0] += took_s
        kind = f"garbage, generation {info['generation']}"
        self._used_s[kind] += took_s
        self._calls[kind] += 1
        self._calls["garbage found"] += info["collected"]
        self._used_s["garbage found"] += 0.0

    def write(self, path: Path) -> None:
        """Write kind → calls and seconds."""
        found = {kind: (self._calls[kind], self._used_s[kind]) for kind in self._used_s}
        path.write_text(json.dumps(found))


def main() -> None:
    """Run the command line with clocks."""
    clocks = Clocks()
    for kind, names in KINDS.items():
        for name in names:
            _wrap(clocks, kind, name)
    gc.callbacks.append(clocks.collect)
    try:
        run()
    finally:
        if path := os.environ.get(WRITTEN):
            clocks.write(Path(path))


def _wrap(clocks: Clocks, kind: str, name: str) -> None:
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(f"cpupool.{module}")
    *owners, attribute = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, attribute, clocks.around(kind, getattr(owner, attribute)))


if __name__ == "__main__":
    main()
