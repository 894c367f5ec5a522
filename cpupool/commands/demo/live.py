"""A live node: the embedded kubelet and runtime with the agent running on them, and a look at it.

The CPUs of each process should be those that the application itself can see: by the variables in
its environment, or by the pool file where it has none. This module compares them with the kernel's
own word.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from cpupool.agent.app import Agent
from cpupool.core.cgroups import Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError, RemoteProtocolError
from cpupool.core.grants import WHOLE_POD
from cpupool.core.names import EXCLUSIVE_CPUS, OWN_FOLDER, SHARED_CPUS, pool_variable
from cpupool.core.pod_resources import CPU
from cpupool.core.workloads import ContainerRef
from cpupool.host.cgroupfs import CgroupFS
from cpupool.host.sysfs import Sysfs
from cpupool.local.cluster import EmbeddedCluster
from cpupool.local.node import EmbeddedNode
from cpupool.manager import by_plugins, report
from cpupool.manager.manager import Manager
from cpupool.policies.view import DEFAULT, OF_POLICY
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from cpupool.agent.setup import Setup
    from cpupool.core.names import Names
    from cpupool.core.workloads import Pod
    from cpupool.enforce.sweep import SweepReport
    from cpupool.kube.views import Body
    from cpupool.local.cgroups import Cgroups
    from cpupool.local.devices import Listing
    from cpupool.local.pods import ContainerProcess
    from cpupool.manager.facts import NodeFacts
    from cpupool.manager.report import NodeStatus, PluginReport
    from cpupool.manager.resolve import Snapshot
    from cpupool.policies.view import NodeView

PATIENCE_S: Final = 20.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process of the node.

    Attributes:
        name: `pod/container`, or `pod (sandbox)`.
        requested: the pools that it requests, with amounts; under a CPU manager policy the class
            in its label and its whole CPUs.
        given: the CPU variables in its environment.
        belongs: the online CPUs that follow from these, in the list format; none where it
            requests pools and has no variable of them. Without variables, the agent's decision.
            Of own CPUs that can change, those that its folder tells.
        runs: the CPUs that the kernel lets it run on.
    """

    name: str
    requested: str
    given: str
    belongs: str
    runs: str

    @property
    def right(self) -> bool:
        """Whether it runs where it belongs."""
        return self.belongs == self.runs


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One container that was moved to other CPUs, and came back.

    Attributes:
        name: its process's name.
        moved_to: the CPUs written into its cpuset.
        back_on: the CPUs it runs on now.
        after_ms: from the write to the end of the sweep that repaired it; None if none did.
    """

    name: str
    moved_to: str
    back_on: str
    after_ms: float | None


class LiveNode:
    """The embedded node with the agent on it. Use it as a context manager.

    Args:
        folder: plays `/` for the kubelet and the agent.
        place: where containers run.
        settings: the agent's.
        labels: the node's.
        sysfs: the machine.
        nri: whether the agent is the NRI plugin of the runtime.
        check: called while waiting; may raise to end it.
        names: the public strings, with the resource domain.

    Attributes:
        node: the embedded node.
        agent: the agent.
        astray: the names of processes that were not where they belong when patience ended.
    """

    def __init__(
        self,
        folder: Path,
        place: Cgroups,
        settings: Setup,
        labels: Mapping[str, str],
        sysfs: Path = Path("/sys"),
        *,
        nri: bool = False,
        check: Callable[[], None] = lambda: None,
        names: Names | None = None,
    ) -> None:
        self.node = EmbeddedNode(
            folder, place, names=names, sysfs=sysfs, nri=nri, changed=self._pods_changed
        )
        self.agent = Agent(
            Manager(names),
            settings,
            self.node.root,
            Sysfs.at(sysfs),
            lambda _metrics, _signals: EmbeddedCluster(self.node, labels),
            observe=self._swept,
        )
        self.astray: set[str] = set()
        self._check = check
        self._opened = ExitStack()
        self._looked = threading.Condition()
        self._last_sweep: SweepReport | None = None
        self._repaired_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        self.agent.configure()
        with ExitStack() as opened:
            opened.enter_context(self.node)
            opened.enter_context(_running(self.agent))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def await_pools(self) -> Iterator[tuple[str, int]]:
        """Wait until the kubelet knows every pool; give each resource with its device count.

        Raises:
            RemoteProtocolError: one does not appear in time.
        """
        manager = self.agent.manager
        for advertised in manager.advertised():
            healthy = sum(device.healthy for device in manager.devices(advertised.name).offer)
            resource = manager.names.resource(advertised.name)
            self.node.kubelet.wait_for(resource, partial(_offers, healthy), PATIENCE_S)
            yield resource, healthy

    def await_plugin(self) -> None:
        """Wait until the runtime asks the agent before each container.

        Raises:
            RemoteProtocolError: the agent does not connect in time.
        """
        if not self._await(lambda: self.node.plugged):
            raise RemoteProtocolError("the agent does not connect to NRI; look at its log")

    def run_pod(self, body: Body) -> Pod:
        """Start a pod; its init containers end once they have been seen on their CPUs.

        A pod that the CPU manager policy refuses is held, until `end_until_served`.

        Raises:
            PodRefused: the node cannot take it.
            RemoteProtocolError: it waits for a plugin that does not answer.
        """
        pod = self.node.run_pod(body, during_init=self._init_runs)
        # The agent may refuse a pod that it does not know yet; the kubelet tries again, too.
        settled = self._await(self._served_run)
        if not settled and pod.uid in self.node.held() and self.asks_plugins(pod):
            self.await_answer(pod)
        return pod

    def own_cpus(self, pod: Pod) -> Mapping[str, CPUSet]:
        """Return the CPUs that the policy chose for a pod: container → CPUs, in the pod's order."""
        grant = self._view().chosen.get(pod.cgroup_uid)
        parts = grant.parts if grant else {}
        names = (WHOLE_POD, *(container.name for container in pod.containers))
        return {name: parts[name] for name in names if name in parts}

    def await_resources(self, resources: Collection[str]) -> frozenset[str]:
        """Wait until plugins serve some resources; for none until a plugin serves any.

        Returns:
            All resources that plugins serve.

        Raises:
            RemoteProtocolError: one of them does not register in time.
        """
        if not self._await(
            lambda: bool(served := self._facts().plugins.served) and served.issuperset(resources)
        ):
            missing = ", ".join(sorted(set(resources) - self._facts().plugins.served))
            why = _complaints(self.agent.resource_manager.reports.report())
            raise RemoteProtocolError(f"no plugin registers for {missing or 'a resource'}: {why}")
        return self._facts().plugins.served

    def asks_plugins(self, pod: Pod) -> bool:
        """Return whether the agent asks a plugin for CPUs of a pod."""
        now = self.agent.manager.snapshot()
        return any(
            CPU in by_plugins.plugin_requests(now.facts, now.resolution.grants, pod, container)
            for container in pod.containers
        )

    def await_answer(self, pod: Pod, cpus: int | None = None) -> CPUSet:
        """Wait until a plugin has answered for a pod, or given it so many CPUs; return its CPUs.

        Raises:
            RemoteProtocolError: no plugin does in time; or, if no number of CPUs is awaited, it
                refuses, or gives an answer that does not apply.
        """

        def decided() -> bool:
            if cpus is None:
                return self._is_answered(pod) or bool(_refusals(self._facts(), pod))
            return len(_by_plugins(self._facts(), pod)) == cpus

        why = "" if self._await(decided) else "it has not answered in time"
        if not self._is_answered(pod):
            why = _refusals(self._facts(), pod) or why
        if why:
            raise RemoteProtocolError(
                f"the plugin for cpu has no new CPUs for the pod {pod.name}: {why}; read the"
                " plugin's log, or name pods that it serves with --pods"
            )
        return _by_plugins(self._facts(), pod)

    def refusal(self, pod: Pod) -> str:
        """Return why the CPU manager policy gave a pod no CPUs of its own; empty if it did."""
        refused = self._view().refused.get(pod.cgroup_uid)
        return refused.error.as_kubelet if refused else ""

    def others(self) -> str:
        """Say where pods without CPUs of their own run, once the kernel says that they do."""
        self.settled_rows()
        extents = self._view().extents
        sets = {name: extents[name] for name in OF_POLICY if name in extents}
        if sets.keys() == {DEFAULT}:
            return f"All other containers run on the default pool: {sets[DEFAULT]}."
        listed = ", ".join(f"{name} {cpus}" for name, cpus in sets.items())
        return f"All other containers run on the shared CPUs: {listed}."

    def end(self, pod: Pod) -> None:
        """End a pod, and wait until the CPU manager policy has its CPUs back."""
        self.node.delete_pod(pod.uid)
        self._await(lambda: pod.cgroup_uid not in self._view().chosen)

    def end_until_served(self) -> Iterator[tuple[Pod, tuple[Pod, ...]]]:
        """End pods with CPUs of their own, the oldest first, while another pod is held.

        Yields:
            The pod that has ended, and the held pods that have then started.
        """
        for pod in self.node.pods():
            held = self.node.held()
            if not held:
                return
            if pod.uid in held or not self.own_cpus(pod):
                continue
            self.end(pod)
            self._await(self._served_run)
            served = held.keys() - self.node.held().keys()
            yield pod, tuple(each for each in self.node.pods() if each.uid in served)

    def resize(self, pod: Pod, container: str, cpu: str) -> str:
        """Resize a container of a pod in place; return why it keeps its CPUs, empty if not.

        When this returns, the agent knows the new request, too.
        """
        asked = [
            each.request_milli for each in self.node.resize(pod.uid, {container: cpu}).containers
        ]

        def known() -> bool:
            seen = self.agent.manager.snapshot().resolution.pods.get(pod.cgroup_uid)
            return seen is not None and [each.request_milli for each in seen.containers] == asked

        self._await(known)
        return self.node.resizing().get(pod.uid, "")

    def await_told(self, pod: Pod, container: str, **expected: object) -> str:
        """Wait until the folder of a container tells these members; return the text there.

        Raises:
            RemoteProtocolError: it does not in time.
        """
        (folder,) = (
            process.instance.mounts[OWN_FOLDER]
            for process in self.node.processes()
            if (process.pod.uid, process.container) == (pod.uid, container)
        )
        told = ""

        def tells() -> bool:
            nonlocal told
            told = (folder / "cpus.json").read_text().strip()
            return expected.items() <= Fields.of(json_text.load(told)).members.items()

        if not self._await(tells):
            raise RemoteProtocolError(
                f"the folder of {pod.name}/{container} tells {told}; look at the agent's log"
            )
        return told

    def rows(self) -> tuple[ProcessRow, ...]:
        """List every process with its current CPUs."""
        return tuple(self._row(process) for process in self.node.processes())

    def settled_rows(self) -> tuple[ProcessRow, ...]:
        """List every process once all run where they belong; note in `astray` which never do."""
        self._await(lambda: all(row.right for row in self.rows()))
        rows = self.rows()
        self.astray |= {row.name for row in rows if not row.right}
        return rows

    def status(self) -> NodeStatus:
        """Return the status of the agent, after it has seen every process on its CPUs."""
        self._await(self._all_seen)
        return self._status()

    def disturb(self) -> Disturbance | None:
        """Move a container to the whole machine and wait for its return.

        Returns:
            What happened; None on a machine where no container has less than all CPUs.
        """
        everything = self.agent.manager.snapshot().facts.topology.online
        targets = [
            (process, row)
            for process in self.node.processes()
            if (row := self._row(process)).belongs != str(everything)
        ]
        if not targets:
            return None
        # The CPUs of an exclusive container matter most.
        process, row = max(
            targets, key=lambda target: EXCLUSIVE_CPUS in target[0].instance.environment
        )
        path = self.node.path_of(process)
        moved_s = time.monotonic()
        CgroupFS(self.node.root.cgroup, self.node.cgroup_root).write(path, everything)
        # The sweep may have found an empty file: an emulated file is empty during a write.
        repaired = self._await(lambda: self._repaired_s.get(path, 0.0) > moved_s)
        after_ms = (self._repaired_s[path] - moved_s) * 1000 if repaired else None
        self._await(lambda: self._row(process).right)
        return Disturbance(row.name, str(everything), self._row(process).runs, after_ms)

    def _served_run(self) -> bool:
        """Try to start the held pods; return whether each pod that is left was refused."""
        self.node.try_again(self._init_runs)
        refused = self._view().refused.items()
        return self.node.held().keys() <= {uid for uid, why in refused if not why.error.passes}

    def _is_answered(self, pod: Pod) -> bool:
        now = self.agent.manager.snapshot()
        return not any(
            by_plugins.lacking(now.facts, now.resolution.grants, pod, container)
            for container in pod.containers
        )

    def _facts(self) -> NodeFacts:
        return self.agent.manager.snapshot().facts

    def _view(self) -> NodeView:
        return self.agent.manager.snapshot().resolution.view

    def _all_seen(self) -> bool:
        found = self._last_sweep.found if self._last_sweep else ()
        processes = self.node.processes()
        reported = {
            container for _, container in self.agent.manager.snapshot().resolution.containers
        }
        return (
            {container.id for container in found} == {process.instance.id for process in processes}
            and {process.instance.id for process in processes if process.container} <= reported
            and all(container.right for container in self._status().containers)
        )

    def _init_runs(self, _pod: Pod, _name: str) -> None:
        self.settled_rows()

    def _pods_changed(self) -> None:
        self.agent.wake()

    def _swept(self, report_of_sweep: SweepReport) -> None:
        now_s = time.monotonic()
        with self._looked:
            self._last_sweep = report_of_sweep
            for repair in report_of_sweep.repairs:
                if not repair.error:
                    self._repaired_s[repair.path] = now_s
            self._looked.notify_all()

    def _status(self) -> NodeStatus:
        found = self._last_sweep.found if self._last_sweep else ()
        writer = Writer.NRI if self.node.plugged else Writer.CGROUP
        plugins = self.agent.resource_manager.reports.report()
        now = self.agent.manager.snapshot()
        notices = self.agent.notices()
        return report.describe(*now, found, enforcement=writer, plugins=plugins, notices=notices)

    def _await(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition holds; tell whether it does."""
        deadline_s = time.monotonic() + PATIENCE_S
        with self._looked:
            while not (holds := condition()) and time.monotonic() < deadline_s:
                self._check()
                # Emulated cgroups take effect a little after the sweep that wrote them.
                self._looked.wait(_LOOK_S)
        return holds

    def _row(self, process: ContainerProcess) -> ProcessRow:
        return _row(self.agent.manager.snapshot(), process)


def _complaints(plugins: PluginReport) -> str:
    """Return the faults of the plugins that are there."""
    said = [
        f"{each.socket}: {each.why or f'serves {each.resource}; its GetInfo names the resource'}"
        for each in plugins.plugins
        if each.why or each.resource
    ]
    nothing = f"none has a socket in {', '.join(plugins.folders)}; start one with its socket there"
    return "; ".join(said) or ("it does not answer" if plugins.plugins else nothing)


@contextmanager
def _running(agent: Agent) -> Iterator[None]:
    """Run an agent in a thread of its own; raise the error with which it ends."""
    stop = threading.Event()
    failures: list[CPUPoolError] = []

    def run() -> None:
        try:
            agent.run(stop)
        except CPUPoolError as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="agent")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _refusals(facts: NodeFacts, pod: Pod) -> str:
    """Return why containers of a pod have no answer that applies; empty for no reason."""
    refs = [ContainerRef(pod.cgroup_uid, container.name) for container in pod.containers]
    given = {ref.name: facts.plugins.answers.get(ref, {}).get(CPU) for ref in refs}
    refused = {
        ref.name: facts.plugins.refusals[ref] for ref in refs if ref in facts.plugins.refusals
    }
    refused |= {name: answer.refused for name, answer in given.items() if answer and answer.refused}
    return "; ".join(f"container {name}: {why}" for name, why in refused.items())


def _by_plugins(facts: NodeFacts, pod: Pod) -> CPUSet:
    """Return the CPUs that plugins have given a pod."""
    refs = (ContainerRef(pod.cgroup_uid, container.name) for container in pod.containers)
    given = (facts.plugins.answers.get(ref, {}) for ref in refs)
    return CPUSet.union(by_resource[CPU].cpus for by_resource in given if CPU in by_resource)


def _row(now: Snapshot, process: ContainerProcess) -> ProcessRow:
    """Compare the CPUs of a process with those where it belongs."""
    name = process.container
    spec = [container for container in process.pod.containers if container.name == name]
    requests = spec[0].requests if spec else {}
    environment = process.instance.environment
    if requests:
        named = [environment.get(pool_variable(pool), "") for pool in requests]
        requested = ", ".join(f"{pool} {amount}" for pool, amount in requests.items())
    else:
        decided = now.assignment((process.pod.cgroup_uid, process.instance.id))
        named = [environment.get(EXCLUSIVE_CPUS, str(decided.cpus))]
        if folder := process.instance.mounts.get(OWN_FOLDER):
            named = [(folder / "cpus").read_text()]
        manager = now.facts.pools.cpu_manager
        whole = manager.eligible.cpus(spec[0]) if spec else 0
        requested = _native_request(process.pod, whole) if spec and manager.chooses else ""
    belongs = CPUSet.union(map(CPUSet.parse, named))
    try:
        runs = str(process.cpus_allowed())
    except FileNotFoundError:
        runs = "ended"
    container = f"/{process.container}" if process.container else " (sandbox)"
    return ProcessRow(
        name=f"{process.pod.name}{container}",
        requested=requested,
        given=", ".join(
            f"{name}={value}"
            for name, value in sorted(environment.items())
            if name in (EXCLUSIVE_CPUS, SHARED_CPUS)
        ),
        belongs=str(belongs & now.facts.topology.online),
        runs=runs,
    )


def _native_request(pod: Pod, whole: int) -> str:
    """Describe a container's request to a CPU manager policy: its class, its whole CPUs."""
    qos = pod.orchestration and pod.orchestration.qos
    return ", ".join((*([qos.value] if qos else []), *([f"cpu {whole}"] if whole else [])))


def _offers(devices: int, listing: Listing) -> bool:
    return listing.allocatable == devices
