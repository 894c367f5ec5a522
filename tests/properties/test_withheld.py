"""A CPU that a container cannot have is as an offline one, whatever keeps it away."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from cpupool.agent.machine_watcher import MachineWatcher
from cpupool.core import withheld
from cpupool.core.cpu_manager import CPUManager, Suppression
from cpupool.core.cpu_time import CPUUse
from cpupool.core.cpuset import CPUSet
from cpupool.core.devices import advertised
from cpupool.core.pools import NodePools, Pool
from cpupool.host.usable_cpus import UsableCPUs
from cpupool.manager.manager import Manager
from cpupool.manager.usage import usage
from cpupool.telemetry.health import Health
from tests import builders
from tests.drawn_machines import machines
from tests.searching import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Pod
    from tests.machines import Machine

POLICIES = (
    CPUManager(),
    CPUManager("static", reserved=1),
    CPUManager("koordinator", reserved=CPUSet.of(0)),
    CPUManager("koordinator", reserved=CPUSet.of(0), suppression=Suppression(65)),
)
CAUSES = ("service", "nested service", "pod's service", "kubepods", "cgroup root")
LOOKS = 10
"""After so many, the partitions are read again, also where the sets look as before."""
KUBEPODS = "lab/kubepods"
OWN = f"{KUBEPODS}/burstable/pod11/{'ab' * 32}"


@dataclass(frozen=True)
class Step:
    """What the machine is like from now on, and what the kubelet does then.

    Attributes:
        offline: CPUs that are offline.
        taken: CPU → what keeps it from containers.
        isolated: CPUs that the agent has isolated for a container.
        pod: how many CPUs a new pod requests; 0 for none, and below for the end of a pod.
        device: a CPU of the exclusive pool that the kubelet gives to that pod; None for none.
    """

    offline: frozenset[int]
    taken: Mapping[int, str]
    isolated: frozenset[int]
    pod: int
    device: int | None


@st.composite
def steps(draw: st.DrawFn, machine: Machine) -> list[Step]:
    cpus = [*machine.topology().online][1:]
    some = st.frozensets(st.sampled_from(cpus), max_size=3)
    made = []
    for _ in range(draw(st.integers(1, 4))):
        taken = draw(st.dictionaries(st.sampled_from(cpus), st.sampled_from(CAUSES), max_size=4))
        made.append(
            Step(
                draw(some),
                taken,
                draw(some) - taken.keys(),
                draw(st.integers(-1, 4)),
                draw(st.none() | st.sampled_from(cpus)),
            )
        )
    return made


@dataclass
class Reading:
    """The machine as sysfs shows it now; satisfies `TopologySource`."""

    machine: Machine
    offline: CPUSet = field(default_factory=CPUSet)

    def online(self) -> CPUSet:
        return self.topology().online

    def topology(self) -> CPUTopology:
        return self.machine.without(str(self.offline)).topology()


class Cgroups:
    """The files of cgroup version 2 as the kernel would show them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def show(self, online: CPUSet, step: Step) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / "cgroup.controllers").write_text("cpuset cpu\n")
        by = {cause: CPUSet(c for c, why in step.taken.items() if why == cause) for cause in CAUSES}
        service, nested, inside, limited, root = (by[cause] & online for cause in CAUSES)
        own = CPUSet(step.isolated) & online
        rest = online - service - nested - inside - own
        self._make("", rest)
        self._make("a.slice", rest, listed=nested)
        if service:
            self._make("dpdk.service", service, state="isolated")
        if nested:
            self._make("a.slice/rt.service", nested, listed=nested, state="root")
        self._make("lab", rest - root, listed=own | inside)
        self._make(KUBEPODS, rest - root - limited, listed=own | inside)
        self._make(f"{KUBEPODS}/burstable", rest - root - limited, listed=own | inside)
        if inside:
            self._make(f"{KUBEPODS}/burstable/rt", inside, listed=inside, state="isolated")
        if own:
            self._make(str(Path(OWN).parent), rest - root - limited, listed=own)
            self._make(OWN, own, listed=own, state="isolated")
            (self.folder / OWN / "cpuset.cpus").write_text(f"{own}\n")

    def _make(
        self, path: str, effective: CPUSet, *, listed: CPUSet | None = None, state: str = "member"
    ) -> None:
        folder = self.folder / path
        folder.mkdir(exist_ok=True)
        (folder / "cpuset.cpus.effective").write_text(f"{effective}\n")
        if path:
            (folder / "cpuset.cpus.partition").write_text(f"{state}\n")
            (folder / "cpuset.cpus.exclusive").write_text(f"{listed or ''}\n")
            granted = "" if listed is None or state == "member" else listed
            (folder / "cpuset.cpus.exclusive.effective").write_text(f"{granted}\n")


class Node:
    """An agent's manager and its machine watcher."""

    def __init__(self, source: Reading | UsableCPUs, pools: NodePools) -> None:
        self.manager = Manager()
        # The pools are in force already: a machine with few CPUs left refuses them as new ones.
        self.manager.reconfigure(pools, source.topology(), again=True)
        self.manager.observe(pods=())
        self.manager.adopt((), None)
        self.watcher = MachineWatcher(
            self.manager,
            source,
            health=Health(),
            changed=lambda: None,
            withholding=source if isinstance(source, UsableCPUs) else None,
        )

    def answers(self) -> dict[str, Any]:
        """Give all that containers and the kubelet see; the reasons in words differ."""
        facts, resolution = self.manager.snapshot()
        placed = resolution.containers
        names = [each.name for each in advertised(facts.pools)]
        return {
            "topology": replace(facts.topology, withheld=()),
            "grants": resolution.grants,
            "refused": resolution.view.refused.keys(),
            "containers": {k: replace(p.assignment, reason="") for k, p in placed.items()},
            "devices": {name: [*self.manager.devices(name).offer] for name in names},
            "usage": usage(facts),
            "sizes": facts.sizes,
            "unknown": resolution.unknown,
        }


@examples(120)
@given(st.data())
def test_one_state_has_several_causes_and_one_reaction(data: st.DataObject) -> None:
    machine = data.draw(machines())
    cpus = machine.topology().online
    cores = machine.topology().cores[1:]
    whole = data.draw(st.sets(st.sampled_from(cores), max_size=2))
    exclusive, both = CPUSet(core.first for core in whole), data.draw(st.booleans())
    pool = [Pool.named("exclusive_a", str(exclusive), multi_threaded=both)] if whole else []
    chosen = data.draw(st.sampled_from(POLICIES))
    pools = NodePools.of(
        *pool, Pool.named("default", str(cpus - CPUSet.union(whole))), cpu_manager=chosen
    )
    story = data.draw(steps(machine))
    with TemporaryDirectory() as folder:
        cgroups, real, reference = Cgroups(Path(folder) / "cg"), Reading(machine), Reading(machine)
        _begin(cgroups, real, reference, story[0])
        taken = Node(UsableCPUs(real, cgroups.folder, "/lab"), pools)
        off = Node(reference, pools)
        pods: list[Pod] = []
        for number, step in enumerate(story):
            _begin(cgroups, real, reference, step)
            _pods(pods, number, step)
            for node, source in ((taken, real), (off, reference)):
                for _ in range(LOOKS):
                    node.watcher.look()
                node.manager.observe(pods=pods)
                use = {cpu: 1000 if cpu in step.taken else 100 for cpu in source.online()}
                node.manager.measure(CPUUse(use, {}))
                if step.device is not None and step.device in exclusive and step.pod > 0:
                    given_ = builders.given(pods[-1], exclusive_a=str(step.device))
                    node.manager.accept(given_)
            assert taken.answers() == off.answers()
            there = taken.manager.snapshot().facts.topology.withheld
            kept = CPUSet(step.taken) - CPUSet(step.offline)
            assert withheld.all_of(there) == kept
            assert all(
                step.taken[cpu] == _cause(part.cgroup) for part in there for cpu in part.cpus
            )


def _cause(cgroup: str) -> str:
    names: Mapping[str, str] = {
        "/dpdk.service": "service",
        "/a.slice/rt.service": "nested service",
        f"/{KUBEPODS}/burstable/rt": "pod's service",
        f"/{KUBEPODS}": "kubepods",
        "/lab": "cgroup root",
    }
    return names[cgroup]


def _begin(cgroups: Cgroups, real: Reading, reference: Reading, step: Step) -> None:
    real.offline = CPUSet(step.offline)
    reference.offline = real.offline | CPUSet(step.taken)
    cgroups.show(real.online(), step)


def _pods(pods: list[Pod], number: int, step: Step) -> None:
    if step.pod > 0:
        name = f"pod-{number}"
        requests = {"exclusive_a": 1} if step.device is not None else {}
        cpu = None if requests else step.pod * 1000
        made: Callable[..., Any] = builders.container
        container = replace(made(name, cpu=cpu, **requests), request_milli=cpu or 0)
        pods.append(builders.pod(name, container, cpu=cpu))
    elif step.pod < 0 and pods:
        pods.pop(0)
