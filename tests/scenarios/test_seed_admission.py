"""Admission binds: no container of the proposal's examples begins before its plugins have answered.

Each container is created at once after its pod appears, and the runtime of the node notes which
CPUs and NUMA nodes its cgroup has at its first instruction.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from cpupool.api.resourceplugin_pb2 import (
    AllocationEntry,
    ResourceAllocation,
    ResourceAllocationInfo,
    ResourceAllocationResponse,
    ResourceRequest,
)
from cpupool.core.plugin_facts import RecordedAnswer
from cpupool.core.workloads import ContainerRef
from cpupool.plugins.nic import BANDWIDTH
from cpupool.qrm import answer_record
from tests.resource_plugins import Refusal
from tests.scenarios.seeds.examples import values
from tests.scenarios.seeds.test_qos_resource_manager import (
    ALL,
    EXAMPLE_1,
    EXAMPLE_2,
    EXAMPLE_3,
    POOLS,
    ROLE,
    allocated,
    configure,
    plugins,
    resources,
    world,
    write_nics,
)
from tests.scenarios.seeds.test_qos_resource_manager import plugin as plugin_process
from tests.scenarios.test_resource_plugins import (
    QOS,
    Plugin,
    agent,
    asked_by_the_runtime,
    body,
    cpus,
    environment,
    refused,
    right,
    run,
    served,
    started,
)
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cpupool.core.workloads import Pod
    from tests.scenarios.test_agent_process import World

__all__ = ["world"]

TRIES = 24
STARTS = 3
TYPE = "kubernetes.io/resource-type"
NICS = "nokia.k8s.io/requests"
ANY = "0-1"
"""The NUMA nodes of a container for whose memory no plugin answers."""


class Asking(NamedTuple):
    """A pod of the examples, in the proposal's own words.

    Attributes:
        role: its role.
        requests: those of its container.
        answers: resource → the file with the answer for it.
        cpus: what its container has.
        memory: its NUMA nodes.
        nics: how many NICs it requests.
    """

    role: str
    requests: Mapping[str, str]
    answers: Mapping[str, str]
    cpus: str
    memory: str = ANY
    nics: int = 0

    @property
    def annotations(self) -> dict[str, str]:
        asks = {NICS: f'{{"NIC": "{self.nics}"}}'} if self.nics else {}
        return {ROLE: self.role, TYPE: "of the examples", **asks}


def of_two(role: str, example: str, cpu: str, memory: str, **more: Any) -> Asking:
    """Make a pod whose CPUs and memory lie on one NUMA node."""
    given = resources(example)
    files = {"cpu": f"{example}-cpu", "memory": f"{example}-memory"}
    files |= {"NIC": "3-pod1-nic"} if more else {}
    requests = {"cpu": cpu, "memory": memory}
    return Asking(role, requests, files, given["cpusetCpus"], given["cpusetMems"], **more)


ONLINE, ETL = (
    Asking(role, {"cpu": cpu}, {"cpu": f"1-{pod}-cpu"}, resources(f"1-{pod}")["cpusetCpus"])
    for role, pod, cpu in (("online-micro_service", "pod1", "4"), ("ETL", "pod2", "2"))
)
STORAGE = of_two("storage-service", "2-pod1", "20", "40Gi")
RERANKER = of_two("reranker", "2-pod2", "10", "20Gi")
ENHANCED = of_two("numa-enhancement", "2-pod2", "10", "20Gi", nics=1)


class StrangersPlugin(Plugin):
    """A plugin that answers with the proposal's JSON, word for word: also for which pod.

    Args:
        world: the node.
        resource: what it serves.
        pods: those that it knows, by their roles.

    Attributes:
        said: role → its answer.
    """

    def __init__(self, world: World, resource: str, *pods: Asking, **options: bool) -> None:
        super().__init__(world, resource, **options)
        self.said: Mapping[str, ResourceAllocationResponse] = {
            pod.role: words(pod.answers[resource]) for pod in pods if resource in pod.answers
        }

    def allocate(self, request: bytes) -> bytes:
        asked = ResourceRequest.FromString(request)
        said = self.said[asked.pod_role]
        self.known.setdefault(asked.pod_uid, {})[asked.container_name] = said.allocation_result
        return said.SerializeToString()


def words(example: str) -> ResourceAllocationResponse:
    """Return a response of the proposal; an answer for memory has the key cpu there."""
    said = values(f"qos_resource_manager/{example}.json")
    (key,) = said.pop("allocatation_result")["resource_allocation"]
    entry = AllocationEntry(key=key, value=allocated(example))
    result = ResourceAllocation(resource_allocation=[entry])
    return ParseDict(said, ResourceAllocationResponse(allocation_result=result))


class Began(NamedTuple):
    """What a container had at its first instruction.

    Attributes:
        cpus: the CPUs of its cgroup.
        memory: the NUMA nodes of its cgroup.
        own: its variable for CPUs of its own.
    """

    cpus: str
    memory: str = ANY
    own: str = ""


def began(world: World, pod: Pod, container: str = "main") -> Began:
    """Return what a pod's container had at its first instruction."""
    (found,) = (
        one.instance
        for one in world.node.processes()
        if (one.pod.uid, one.container) == (pod.uid, container)
    )
    own = found.environment.get("EXCLUSIVE_CPUS", "")
    return Began(str(found.began_on), str(found.began_near), own)


def tries(
    world: World, pods: Sequence[Asking], wanted: Callable[[World, Asking, Pod], Began]
) -> Counter[str]:
    """Start a container again and again, each at once after its pod appears; count how it began.

    Args:
        world: the node.
        pods: as what pods it is started, one after the other.
        wanted: returns with what it is right.
    """
    found: Counter[str] = Counter()
    for n in range(TRIES):
        asking = pods[n % len(pods)]
        pod = run(world, f"pod-{n}", asking.annotations, **asking.requests)
        started(world, pod)
        has, must = began(world, pod), wanted(world, asking, pod)
        found["right" if has == must else f"{asking.role}: {has}, not {must}"] += 1
        world.node.delete_pod(pod.uid)
    return found


def as_proposed(_world: World, asking: Asking, _pod: Pod) -> Began:
    return Began(asking.cpus, asking.memory)


def as_answered(world: World, _asking: Asking, pod: Pod) -> Began:
    """Return what the agent has recorded, before the container was created."""
    given = answer_record.parse(world.node.root.answers.read_bytes())
    has = given.get(ContainerRef(pod.uid, "main"), {})
    cpus, memory = has.get("cpu", RecordedAnswer(0.0)), has.get("memory", RecordedAnswer(0.0))
    return Began(str(cpus.cpus), str(memory.memory) or ANY, str(cpus.cpus) * cpus.exclusive)


@contextmanager
def third_parties(world: World, pods: Sequence[Asking]) -> Iterator[None]:
    with ExitStack() as running:
        for resource in pods[0].answers:
            running.enter_context(StrangersPlugin(world, resource, *pods))
        yield


@pytest.mark.parametrize(
    "pods", [(ONLINE, ETL), (STORAGE, RERANKER), (ENHANCED,)], ids=["1", "2", "3"]
)
def test_every_container_begins_with_the_answers_of_the_proposal(
    world: World, pods: Sequence[Asking]
) -> None:
    with third_parties(world, pods), asked_by_the_runtime(world) as process:
        served(process, ",".join(sorted(pods[0].answers)))
        assert tries(world, pods, as_proposed) == {"right": TRIES}


@pytest.mark.parametrize(
    ("pods", "config", "names"),
    [
        ((ONLINE, ETL), EXAMPLE_1, "cpu"),
        ((STORAGE, RERANKER), EXAMPLE_2, "cpu,memory"),
        ((ENHANCED,), EXAMPLE_3, "cpu,memory,nic"),
    ],
    ids=["1", "2", "3"],
)
def test_every_container_begins_with_the_answers_of_our_plugins(
    world: World, pods: Sequence[Asking], config: str, names: str
) -> None:
    write_nics(world)
    with plugins(world, config, *names.split(",")), asked_by_the_runtime(world) as process:
        served(process, f"NIC,cpu,memory,{BANDWIDTH}" if "nic" in names else names)
        assert tries(world, pods, as_answered) == {"right": TRIES}
        own = {"EXCLUSIVE_CPUS"} if pods[0].memory != ANY else set()
        last = run(world, "last", pods[-1].annotations, **pods[-1].requests)
        started(world, last)
        assert environment(world, "last").keys() & {"EXCLUSIVE_CPUS", "SHARED_CPUS"} == own


PLAIN: dict[str, str] = {}
SHARED = {QOS: "shared_cores"}
DEDICATED = {QOS: "dedicated_cores"}
WORDS = ONLINE.annotations
GIVEN = Began("2-3")


@pytest.mark.parametrize("annotations", [PLAIN, SHARED])
def test_so_does_a_container_that_names_nothing_for_plugins(
    world: World, annotations: dict[str, str]
) -> None:
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        found: Counter[Began] = Counter()
        for n in range(TRIES):
            pod = run(world, f"pod-{n}", annotations)
            started(world, pod)
            found[began(world, pod)] += 1
            world.node.delete_pod(pod.uid)
        assert found == {GIVEN: TRIES}
        assert len(plugin.allocated()) == TRIES


def test_every_container_of_a_pod_waits_for_all_of_its_pod(world: World) -> None:
    asks = {"resources": {"requests": {"cpu": "1"}}}
    names = ("init", "main", "side")
    containers = [{"name": name, **asks} for name in names]
    pod = {
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": WORDS},
        "spec": {"initContainers": containers[:1], "containers": containers[1:]},
    }
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        inits: list[str] = []
        each = lambda of, _name: inits.append(began(world, of, "init").cpus)  # noqa: E731
        web = world.node.run_pod(pod, each)
        eventually(lambda: runs(world, web, each), lambda: str(world.node.held()))
        assert (inits, began(world, web), began(world, web, "side")) == (["2-3"], GIVEN, GIVEN)
        assert len(plugin.allocated()) == len(names)


class Gives(Plugin):
    """A plugin that gives every container the same CPUs.

    Attributes:
        takes: called before each answer of Allocate.
    """

    def __init__(self, world: World, **options: bool) -> None:
        super().__init__(world, "cpu", **options)
        self.gives = always(cpus(GIVEN.cpus))
        self.takes: Callable[[], object] = lambda: None

    def allocate(self, request: bytes) -> bytes:
        self.takes()
        return super().allocate(request)


def always(
    given: ResourceAllocationInfo | Refusal,
) -> dict[str, ResourceAllocationInfo | Refusal]:
    """Return what a plugin gives that knows one answer: pod → answer."""
    return defaultdict(lambda: given)


def runs(world: World, pod: Pod, each: Callable[[Pod, str], None]) -> bool:
    world.node.try_again(each)
    return pod.uid not in world.node.held()


EVERY = pytest.mark.parametrize("annotations", [WORDS, DEDICATED, PLAIN], ids=str)
BOUND = pytest.mark.parametrize("annotations", [WORDS, DEDICATED], ids=str)
"""Those that no plugin's failure lets start."""
SLOW_S = 1.5
"""Longer than the runtime waits for a container."""
FULL = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "no CPU is left")
LIE = cpus("2-3,90")


@EVERY
def test_a_slow_plugin_is_waited_for(world: World, annotations: dict[str, str]) -> None:
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        plugin.takes = lambda: threading.Event().wait(SLOW_S)
        slow, other = run(world, "slow", annotations), run(world, "other", cpu="0")
        started(world, other)
        assert slow.uid in world.node.held()
        started(world, slow)
        assert began(world, slow)[:2] == GIVEN[:2]
        assert plugin.allocated() == ["slow"]


@EVERY
def test_plugins_that_prepare_slowly_are_waited_for(
    world: World, annotations: dict[str, str]
) -> None:
    """The runtime gives up each try that has to wait for them."""

    def prepare(_request: bytes) -> bytes:
        threading.Event().wait(SLOW_S)
        return b""

    cpu = Gives(world, pre_start_required=True)
    memory = StrangersPlugin(world, "memory", pre_start_required=True)
    memory.said = defaultdict(lambda: words(RERANKER.answers["memory"]))
    for plugin in (cpu, memory):
        plugin.replies["PreStartContainer"] = prepare
    with cpu, memory, asked_by_the_runtime(world) as process:
        served(process, "cpu,memory")
        pod = run(world, "web", annotations, cpu="2", memory="1Gi")
        started(world, pod)
        world.node.restart_container(pod.uid, "main")
        started(world, pod)
        assert began(world, pod)[:2] == (GIVEN.cpus, RERANKER.memory)


@BOUND
@pytest.mark.parametrize(
    ("given", "why"),
    [(FULL, "no CPU is left"), (LIE, "names CPUs 90, which are not the policy's")],
    ids=["refused", "lie"],
)
def test_a_pod_that_is_refused_or_lied_to_is_held_with_an_event(
    world: World,
    annotations: dict[str, str],
    given: ResourceAllocationInfo | Refusal,
    why: str,
) -> None:
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        plugin.gives = always(given)
        pod = run(world, "web", annotations)
        assert "container default/web/main is held" in refused(world, pod, why)
        assert why in world.await_event("UnexpectedAdmissionError", "web")
        if given is FULL:
            plugin.gives = always(cpus(GIVEN.cpus))
            started(world, pod)
            assert began(world, pod)[:2] == GIVEN[:2]


@BOUND
def test_or_fails_with_the_plugins_words(world: World, annotations: dict[str, str]) -> None:
    world.mount.show(worker=POOLS.replace("policy: qrm", "policy: qrm, onMisfit: fail"))
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        plugin.gives = always(FULL)
        run(world, "web", annotations)
        path = "/api/v1/namespaces/default/pods/web"
        eventually(
            lambda: world.api.kept(path)["status"].get("phase") == "Failed",
            lambda: str(world.api.kept(path)["status"]),
        )
        status = world.api.kept(path)["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "no CPU is left" in status["message"]


@pytest.mark.parametrize(
    ("annotations", "given"), [(PLAIN, FULL), (SHARED, LIE)], ids=["refused", "lie"]
)
def test_a_pod_that_may_share_shares_then(
    world: World, annotations: dict[str, str], given: ResourceAllocationInfo | Refusal
) -> None:
    with Gives(world) as plugin, asked_by_the_runtime(world) as process:
        served(process)
        plugin.gives = always(given)
        pod = run(world, "web", annotations)
        started(world, pod)
        assert began(world, pod) == Began(ALL)
        why = world.await_event("UnexpectedAdmissionError", "web")
        assert ("no CPU is left" if given is FULL else "names CPUs 90") in why
        if given is FULL:
            plugin.gives = always(cpus(GIVEN.cpus))
            right(world, ALL, web=GIVEN.cpus)


@BOUND
def test_a_dead_plugin_holds_until_another_takes_its_place(
    world: World, annotations: dict[str, str]
) -> None:
    socket = world.folder / "var/lib/cpupool/resource-plugins/cpupool-cpu.sock"
    configure(world, EXAMPLE_1)
    with asked_by_the_runtime(world) as process:
        with plugin_process(world, "cpu", signal.SIGKILL):
            served(process)
        assert socket.is_socket()
        pod = run(world, "web", annotations)
        refused(world, pod, "the plugin for cpu is away")
        shares = run(world, "shares")
        started(world, shares)
        assert began(world, shares) == Began(ALL)

        socket.unlink()
        with Gives(world):
            started(world, pod)
            assert began(world, pod)[:2] == GIVEN[:2]


@EVERY
def test_a_mute_plugin_that_is_replaced_is_not_waited_for(
    world: World, annotations: dict[str, str]
) -> None:
    free = threading.Event()
    with Gives(world) as mute, asked_by_the_runtime(world) as process:
        served(process)
        mute.takes = lambda: free.wait(DEADLINE_S)
        pod = run(world, "web", annotations)
        refused(world, pod, "has not answered for container main yet")
        plugin = Gives(world)
        plugin.socket = mute.socket.with_name("another.sock")
        plugin.gives = always(cpus("4-5"))
        with plugin:
            try:
                started(world, pod)
            finally:
                free.set()
            assert began(world, pod)[:2] == ("4-5", ANY)


def test_a_mute_plugin_costs_a_pod_its_limit_and_others_nothing(world: World) -> None:
    free = threading.Event()
    critical = body("critical", WORDS, cpu="2")
    critical["spec"]["priorityClassName"] = "system-node-critical"
    try:
        with Gives(world) as mute, asked_by_the_runtime(world) as process:
            served(process)
            mute.takes = lambda: free.wait(DEADLINE_S)
            held = [
                run(world, f"held-{n}", annotations)
                for n, annotations in enumerate((WORDS, DEDICATED, PLAIN, SHARED))
            ]
            for pod in held:
                refused(world, pod, "has not answered for container main yet")
            for pod in (run(world, "none", cpu="0"), world.node.run_pod(critical)):
                started(world, pod)
                assert began(world, pod) == Began(ALL)
            assert {pod.uid for pod in held} == world.node.held().keys()
            # The plugin has the first question for ten seconds; nobody waits for the next ones.
            for pod in held[2:]:
                started(world, pod)
                assert began(world, pod) == Began(ALL)
            assert len(mute.allocated()) < len(held)
            assert {pod.uid for pod in held[:2]} == world.node.held().keys()
    finally:
        free.set()


@EVERY
def test_an_agent_that_has_just_started_waits_for_its_plugins(
    world: World, annotations: dict[str, str]
) -> None:
    with Gives(world) as plugin:
        for n in range(STARTS):
            with agent(world, end=signal.SIGKILL):
                eventually(lambda: world.node.plugged, "the runtime asks the agent")
                pod = run(world, f"pod-{n}", annotations)
                started(world, pod)
                assert began(world, pod)[:2] == GIVEN[:2]
                world.node.delete_pod(pod.uid)
            eventually(lambda: not world.node.plugged, "the runtime knows of its end")
        assert len(plugin.allocated()) == STARTS
