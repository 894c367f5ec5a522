"""An act of `cpupool demo`: a pod that runs gets more CPUs of its own, and gives some back."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cpupool.commands.demo.manifests import SHARING, pod, whole
from cpupool.commands.shell import reasons
from cpupool.core.names import OWN_FOLDER
from cpupool.core.pools import MILLI_PER_CPU
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cpupool.commands.demo.live import LiveNode
    from cpupool.commands.demo.samples import Samples
    from cpupool.core.cpuset import CPUSet
    from cpupool.core.workloads import Pod
    from cpupool.kube.views import Body

_POD: Final = "web"
_CONTAINER: Final = "main"
_NOTICE_S: Final = 5
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Resize:
    """A resize of the pod in place.

    Attributes:
        cpu: the cpu that it asks for, as a quantity.
        before: the own CPUs of the pod's container before it.
        after: the same after it.
        refused: why the container keeps its CPUs; empty if it does not.
        took_s: how long it took until the container had exactly these CPUs; 0 if it was refused.
        told: what the container has read in its folder.
    """

    cpu: str
    before: str
    after: str
    refused: str = ""
    took_s: float = 0.0
    told: tuple[Mapping[str, Any], ...] = ()


def add(samples: Samples) -> None:
    """Add a pod to resize, and a pod that shares."""

    def owner(name: str, cpus: int) -> Body:
        body = pod(name, [{"name": _CONTAINER, "resources": whole(cpus)}])
        body["metadata"]["annotations"] = {samples.names.notice: str(_NOTICE_S)}
        return body

    sizes = _sizes(samples)
    if len(sizes) < 2:
        has, needs, online = len(samples.own), 2 * _unit(samples), len(samples.machine.online)
        samples.left_out.append(
            f"a resize that fits: it needs {needs} CPUs of the policy, and the policy has {has} of"
            f" this machine's {online}"
        )
    samples.add([owner], _POD, sizes[:1])
    if not samples.pools.pools:
        samples.bodies.append(pod("sharer", [{"name": "work", "resources": SHARING}]))


def show(
    live: LiveNode, samples: Samples, tell: Callable[[str], None], draw: Callable[[], None]
) -> Iterator[Resize]:
    """Resize the pod of `add`, and show what the node and the pod see of it."""
    owner = next((each for each in live.node.pods() if each.name == _POD), None)
    if owner is None or not live.own_cpus(owner):
        return
    draw()
    tell(f'Pod {_POD} has the annotation {samples.names.notice}: "{_NOTICE_S}".')
    (first, *later), unit = _sizes(samples), _unit(samples)
    part = f"{(first, *later)[-1] * MILLI_PER_CPU - 500}m"
    below = [first - unit] if first > unit else []
    more_than_all = len(samples.own) + unit
    for cpu in (*later, part, *below, more_than_all):
        yield _Act(live, owner, tell, draw).resized(str(cpu))


def _sizes(samples: Samples) -> tuple[int, ...]:
    """Return how many CPUs the pod has, one after the other: it grows, and shrinks again."""
    unit, sizes = _unit(samples), {0: (1,), 1: (1,), 2: (1, 2, 1), 3: (1, 3, 2)}
    return tuple(unit * size for size in sizes.get(len(samples.own) // unit, (2, 4, 3)))


def _unit(samples: Samples) -> int:
    """Return how many CPUs the policy gives together."""
    whole_cores = samples.pools.cpu_manager.options.full_pcpus_only
    return max(map(len, samples.machine.cores)) if whole_cores else 1


@dataclass(frozen=True, slots=True)
class _Act:
    """Resizes the pod.

    Attributes:
        live: the node.
        owner: the pod.
        tell: shows a line.
        draw: shows the machine.
    """

    live: LiveNode
    owner: Pod
    tell: Callable[[str], None]
    draw: Callable[[], None]

    @property
    def cpus(self) -> CPUSet:
        """The CPUs that its container must have."""
        return self.live.own_cpus(self.owner)[_CONTAINER]

    def resized(self, cpu: str) -> Resize:
        """Resize it to another cpu."""
        before, began_s = self.cpus, time.monotonic()
        self.tell(f"Pod {_POD} is resized from cpu {len(before)} to {cpu}.")
        if why := self.live.resize(self.owner, _CONTAINER, cpu):
            self.tell(f"Pod {_POD} keeps CPUs {before}: {why}.")
            self.live.resize(self.owner, _CONTAINER, str(len(before)))
            return Resize(cpu, str(before), str(before), why)
        after, told = self.cpus, []
        if before - after:
            told.append(self._read(assigned=str(after)))
            for line in reasons.in_progress(self.live.status()):
                self.tell(line)
            self.draw()
        told.append(self._read(assigned=str(after), cpus=str(after)))
        took_s = time.monotonic() - began_s
        self.tell(f"After {took_s:.2f} s pod {_POD} has CPUs {after} of its own.")
        if before - after:
            self.tell(
                "The notice ended early: no thread of the container needs what leaves."
                if took_s < _NOTICE_S
                else "The notice lasted its whole time: the agent does not see the threads of"
                " containers here."
            )
        self.tell(self.live.others())
        if after - before:
            self.draw()
        return Resize(cpu, str(before), str(after), took_s=round(took_s, 3), told=tuple(told))

    def _read(self, **expected: str) -> Mapping[str, Any]:
        """Read as the container does, once it can read this."""
        text = self.live.await_told(self.owner, _CONTAINER, **expected)
        said = f"Its container reads in {OWN_FOLDER}/cpus.json: {text}"
        wrapped = textwrap.wrap(
            said, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in wrapped:
            self.tell(line)
        return Fields.of(json_text.load(text)).members
