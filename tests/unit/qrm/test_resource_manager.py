"""The resource manager with plugins on real sockets, and a clock that the test sets."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc
import pytest

from cpupool.api import resourceplugin_pb2 as api
from cpupool.core.cpu_manager import TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import ServedAs
from cpupool.core.workloads import ContainerID, ContainerKind, RuntimeContainer
from cpupool.manager.manager import Manager
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.answer_import import AnswerImport
from cpupool.qrm.assembly import answers_file
from cpupool.qrm.plugin_client import Introduction
from cpupool.qrm.resource_manager import PluginSettings, ResourceManager
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.events import Heard
from tests.machines import MACHINES
from tests.resource_plugins import PluginDouble, Refusal
from tests.unit.manager.plugged import container, pod, pools, ref
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cpupool.core.pools import NodePools
    from cpupool.core.workloads import Pod

NIC = "example.com/nic"
DEDICATED = "dedicated_cores"
MILLI = {"example.com/milli": ServedAs("cpu", 1000)}
FULL = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "no CPU is left")


def allocation(value: str = "", resource: str = "cpu", **fields: Any) -> api.ResourceAllocation:
    name = "CpusetCpus" if resource == "cpu" else ""
    info = api.ResourceAllocationInfo(oci_property_name=name, allocation_result=value, **fields)
    return api.ResourceAllocation(
        resource_allocation=[api.AllocationEntry(key=resource, value=info)]
    )


def answer(value: str = "", resource: str = "cpu", **fields: Any) -> api.ResourceAllocationResponse:
    return api.ResourceAllocationResponse(allocation_result=allocation(value, resource, **fields))


def first_node(resource: str) -> api.ResourceHintsResponse:
    """Make the hint that a resource is on the NUMA node 0."""
    hints = api.ListOfTopologyHints(hints=[api.TopologyHint(nodes=[0], preferred=True)])
    return api.ResourceHintsResponse(resource_hints=[api.HintsEntry(key=resource, value=hints)])


def listing(**cpus: str) -> api.GetResourcesAllocationResponse:
    """Make what a plugin lists: pod → CPUs of its container `main`."""
    return api.GetResourcesAllocationResponse(
        pod_resources={
            f"{name}-uid": api.ContainerResources(container_resources={"main": allocation(text)})
            for name, text in cpus.items()
        }
    )


class Node:
    """A node with the role, whose plugins are doubles; a context manager.

    Attributes:
        role: the role of the agent that runs now.
        now_s: the time of the monotonic clock.
        of_node: whether plugins are asked what the node has, too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "plugins"
        self.folder.mkdir()
        self.folders = [self.folder, folder / "missing"]
        self.file = folder / "answers.json"
        self.checkpoint = folder / "kubelet_qrm_checkpoint"
        self.events = Heard()
        self.pods: tuple[Pod, ...] = ()
        self.now_s = 0.0
        self.changes = 0
        self.of_node = False
        self._opened = ExitStack()
        self._role: ResourceManager | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        self._opened.close()

    @property
    def role(self) -> ResourceManager:
        assert self._role is not None
        return self._role

    def start(
        self,
        configured: NodePools | None = None,
        *,
        knows_pools: bool = True,
        adopted: bool = True,
    ) -> None:
        """Start an agent; it knows what the one before has recorded."""
        self.manager, self.metrics = Manager(), Metrics()
        if knows_pools:
            self.configure(configured or pools())
        self._role = ResourceManager(
            self.manager,
            PluginSettings(tuple(self.folders), MILLI, of_node=self.of_node),
            answers_file(self.file),
            AnswerImport([self.checkpoint], self.events),
            telemetry=builders.telemetry(events=self.events, metrics=self.metrics),
            changed=self._note,
            now_s=lambda: self.now_s,
        )
        self.role.recall()
        if adopted:
            self.manager.adopt(())
        if self.pods:
            self.manager.observe(pods=self.pods)

    def configure(self, pools: NodePools) -> None:
        self.manager.reconfigure(pools, MACHINES["arm_no_smt"].topology())

    def _note(self) -> None:
        self.changes += 1

    def stop(self) -> None:
        """End the agent, as at a kill: nothing is written."""
        if self._role is not None:
            self._role._registry.stop()
            self._role = None

    def knock(self, resource: str, plugin: PluginDouble) -> str:
        """Register a plugin's socket for a resource by a call; return why that is refused."""
        why = self.role._knocked(Introduction(resource, plugin.socket, PluginOptions()))

        def serves() -> bool:
            return resource in self.manager.snapshot().facts.plugins.served

        if not why:
            self.until(serves)
        return why

    def plugin(self, resource: str = "cpu", name: str = "", **options: bool) -> PluginDouble:
        double = PluginDouble(self.folder / f"{name or 'cpu'}.sock", resource, **options)
        return self._opened.enter_context(double)

    def run(self, *pods: Pod) -> None:
        self.pods = pods
        self.manager.observe(pods=pods)

    def until(self, condition: Callable[[], object], what: str = "the role has done it") -> None:
        """Step until something holds."""

        def stepped() -> object:
            self.role.step()
            return condition()

        eventually(stepped, lambda: f"{what}: {self.manager.snapshot().facts.plugins}")

    def cpus(self, name: str = "a") -> str:
        given = self.manager.snapshot().facts.plugins.answers.get(ref(name), {})
        return str(given["cpu"].cpus) if "cpu" in given else "nothing"

    def refusal(self, name: str = "a") -> str:
        return self.manager.snapshot().facts.plugins.refusals.get(ref(name), "")


def asked(plugin: PluginDouble, method: str = "Allocate") -> list[str]:
    """Return the pods for which a plugin was asked."""
    return [api.ResourceRequest.FromString(each).pod_name for each in plugin.asked[method]]


def test_a_plugin_that_listens_is_discovered_and_answers(node: Node) -> None:
    node.run(pod("a"))
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.until(lambda: node.cpus() == "1-2")
    assert plugin.asked["NotifyRegistrationStatus"] == [b"\x08\x01"]
    assert node.changes
    assert asked(plugin) == ["a"]


def test_nothing_is_asked_twice_also_over_agents(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    node.stop()
    node.start()
    assert node.cpus() == "1-2"
    node.run(pod("a"), pod("b"))
    node.until(lambda: node.cpus("b") == "1-2")
    assert asked(plugin) == ["a", "b"]


def test_a_request_that_grows_is_asked_again(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")
    plugin.answers("Allocate", answer("1-3"))
    node.run(pod("a", container(cpu=3.0)))
    node.until(lambda: node.cpus() == "1-3")
    assert asked(plugin) == ["a", "a"]


def test_a_refusal_has_the_plugins_words_and_is_tried_again(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", FULL)
    node.run(pod("a", level=DEDICATED))
    node.until(node.refusal)
    assert node.refusal().endswith("has refused (asked to allocate: no CPU is left)")
    plugin.answers("Allocate", answer("1-2"))
    for _ in range(3):
        node.role.step()
    assert asked(plugin) == ["a"]
    node.now_s += 1.5
    node.until(lambda: node.cpus() == "1-2")
    assert node.refusal() == ""


def test_a_bad_answer_is_refused_counted_and_not_asked_for_again(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("8-9"))
    node.run(pod("a", level=DEDICATED))
    node.until(lambda: node.cpus() == "")
    for _ in range(3):
        node.now_s += 100.0
        node.role.step()
    assert asked(plugin) == ["a"]
    page = node.metrics.render()[1].decode()
    assert 'cpupool_plugin_answers_refused_total{resource="cpu",rule="outside"} 1.0' in page


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allocated_quantity", float("nan")),
        ("allocated_quantity", float("-inf")),
        ("allocated_quantity", 2.0**54),
        ("topology_assignments", {2**40: 1}),
        ("envs", {"A": "a\0b"}),
        ("annotations", {"a": "a\0b"}),
    ],
)
def test_what_breaks_a_rule_for_good_is_not_kept_and_the_record_is_written_once(
    node: Node, field: str, value: Any
) -> None:
    plugin = node.plugin(need_reconcile=True)
    listed = api.GetResourcesAllocationResponse(
        pod_resources={
            "a-uid": api.ContainerResources(
                container_resources={"main": allocation("1-2", **{field: value})}
            )
        }
    )
    plugin.answers("Allocate", answer("1-2", **{field: value}))
    plugin.answers("GetResourcesAllocation", listed)
    node.run(pod("a", container(running=True), level=DEDICATED, running=True))
    node.until(lambda: node.cpus() == "")
    before = node.file.stat()
    lists = plugin.asked["GetResourcesAllocation"]
    for count in range(len(lists), len(lists) + 5):
        node.now_s += 5.0
        node.until(partial(lambda count: len(lists) > count, count))
    for _ in range(3):
        node.role.step()
    (given,) = node.role._table.answers(ref("a")).values()
    assert (given.refused != "", given.parts) == (True, {})
    assert node.file.stat() == before, "it is written again"
    said = [reason for _, reason, _ in node.events.pods]
    assert said == ["PluginAnswerRefused"]

    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("GetResourcesAllocation", listing(a="1-2"))
    node.now_s += 5.0
    node.until(lambda: node.cpus() == "1-2")


def test_containers_of_a_pod_are_admitted_one_after_the_other(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", FULL)
    node.run(pod("a", container("one"), container("two")))
    node.until(lambda: plugin.asked["Allocate"])
    node.until(lambda: node.manager.snapshot().facts.plugins.refusals)
    (request,) = plugin.asked["Allocate"]
    assert api.ResourceRequest.FromString(request).container_name == "one"


def test_before_a_start_the_plugin_prepares_the_resource(node: Node) -> None:
    plugin = node.plugin(pre_start_required=True)
    plugin.answers("Allocate", answer("1-2"))
    plugin.answers("PreStartContainer", FULL)
    node.run(pod("a"))
    node.until(node.refusal)
    assert node.cpus() == "nothing"
    plugin.answers("PreStartContainer", b"")
    node.now_s += 1.5
    node.until(lambda: node.cpus() == "1-2")
    assert asked(plugin) == ["a"]


def test_a_plugin_that_is_gone_leaves_its_answers_and_returns(node: Node) -> None:
    with PluginDouble(node.folder / "cpu.sock") as plugin:
        plugin.answers("Allocate", answer("1-2"))
        node.run(pod("a"))
        node.until(lambda: node.cpus() == "1-2")
    (node.folder / "cpu.sock").unlink(missing_ok=True)
    node.run(pod("a"), pod("b", level=DEDICATED))
    for _ in range(3):
        node.role.step()
    assert (node.cpus(), node.cpus("b")) == ("1-2", "nothing")
    again = node.plugin()
    again.answers("Allocate", answer("3"))
    node.until(lambda: node.cpus("b") == "3")
    assert asked(again) == ["b"]


def test_a_plugin_that_returns_is_asked_at_once_for_what_the_old_one_refused(node: Node) -> None:
    with PluginDouble(node.folder / "cpu.sock") as plugin:
        plugin.answers("Allocate", FULL)
        node.run(pod("a", level=DEDICATED))
        node.until(node.refusal)
    (node.folder / "cpu.sock").unlink(missing_ok=True)
    node.plugin().answers("Allocate", answer("3"))
    # The clock stands still: no pause has passed.
    node.until(lambda: node.cpus() == "3")


def test_without_answers_a_lost_resource_is_served_for_some_minutes(node: Node) -> None:
    def served() -> bool:
        return "cpu" in node.manager.snapshot().facts.plugins.served

    node.run()
    with PluginDouble(node.folder / "cpu.sock"):
        node.until(served)
    (node.folder / "cpu.sock").unlink(missing_ok=True)
    node.role.step()
    node.now_s += 299.0
    node.role.step()
    assert served()
    node.now_s += 2.0
    node.role.step()
    assert not served()


def test_a_new_registration_takes_the_place_of_the_old(node: Node) -> None:
    node.run()
    old = node.plugin()
    node.until(lambda: old.asked["NotifyRegistrationStatus"])
    new = node.plugin(name="other")
    new.answers("Allocate", answer("3"))
    node.until(lambda: new.asked["NotifyRegistrationStatus"])
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "3")
    assert not old.asked["Allocate"]


def test_a_socket_of_another_user_is_no_plugin(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = node.plugin()
    os.chown(foreign.socket, 65534, 65534)
    node.run(pod("a"))
    plugin = node.plugin("memory", "memory")
    node.until(lambda: plugin.asked["NotifyRegistrationStatus"])
    node.until(lambda: node.manager.snapshot().facts.plugins.served == {"memory"})
    assert not foreign.asked["GetInfo"]
    assert [each.message for each in caplog.records if "is not root's" in each.message]


def test_the_agents_own_socket_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    plugin = node.plugin()
    os.chown(plugin.socket, 65534, 65534)
    node.run()
    node.until(lambda: node.manager.snapshot().facts.plugins.served == {"cpu"})


def test_one_plugin_that_hangs_hurts_no_other(node: Node) -> None:
    free = threading.Event()
    slow, quick = node.plugin(NIC, "nic"), node.plugin()
    slow.replies["Allocate"] = lambda _request: (free.wait(60), b"")[1]
    quick.answers("Allocate", answer("1-2"))
    try:
        waits = pod("waits", container(more={NIC: 1.0}))
        node.run(waits, pod("a"), pod("b"))
        node.until(lambda: slow.asked["Allocate"])
        node.until(lambda: (node.cpus("a"), node.cpus("b")) == ("1-2", "1-2"))
        assert len(slow.asked["Allocate"]) == 1
    finally:
        free.set()


def test_a_third_partys_resource_gives_variables_and_annotations(node: Node) -> None:
    plugin = node.plugin(NIC, "nic")
    given = answer("", NIC, envs={"ADDR": "::1"}, annotations={"kubernetes.io/netns": "/ns1"})
    plugin.answers("Allocate", given)
    node.run(pod("a", container(more={NIC: 2.0})))
    texts = ({"ADDR": "::1"}, {"kubernetes.io/netns": "/ns1"})
    node.until(lambda: node.manager.snapshot().facts.plugins.texts(ref("a")) == texts)
    (request,) = plugin.asked["Allocate"]
    assert dict(api.ResourceRequest.FromString(request).resource_requests) == {NIC: 2.0}


def test_a_plugin_serves_a_resource_of_pods_under_its_own_name(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a", container(more={"example.com/milli": 1500.0})))
    node.until(lambda: node.cpus() == "1-2")
    (request,) = map(api.ResourceRequest.FromString, plugin.asked["Allocate"])
    assert (request.resource_name, dict(request.resource_requests)) == ("cpu", {"cpu": 1.5})
    both = pod("b", container(cpu=1.0, more={"example.com/milli": 1500.0}), level=DEDICATED)
    node.run(*node.pods, both)
    node.until(lambda: "requests cpu and example.com/milli" in node.refusal("b"))
    assert asked(plugin) == ["a"]


def test_a_record_that_cannot_be_written_holds_up_nobody(node: Node) -> None:
    node.file.mkdir()
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    node.run(pod("a"))
    node.until(lambda: node.cpus() == "1-2")


def test_an_ended_init_container_is_asked_for_no_more(node: Node) -> None:
    plugin = node.plugin()
    plugin.answers("Allocate", answer("1-2"))
    init = container("init", ContainerKind.INIT)
    node.run(pod("a", init, container(), running=True))
    node.until(lambda: node.cpus() == "1-2")
    assert len(plugin.asked["Allocate"]) == 1


def test_a_flood_of_work_does_not_hold_up_a_step(node: Node) -> None:
    done: list[None] = []

    def again() -> None:
        done.append(None)
        node.role._post(again)

    node.role._post(again)
    node.role.step()
    assert len(done) == 1


def test_a_pod_is_admitted_once_it_is_known_how_hints_are_merged(node: Node) -> None:
    node.stop()
    node.start(knows_pools=False)
    nic = node.plugin(NIC, with_topology_alignment=True)
    nic.answers("GetTopologyHints", first_node(NIC))
    nic.answers("Allocate", answer(resource=NIC, envs={"NIC": "eth0"}))
    node.run(pod("a", container(more={NIC: 1.0})))
    node.until(lambda: NIC in node.manager.snapshot().facts.plugins.served)
    node.role.step()
    node.configure(pools(topology=TopologyPolicy.SINGLE_NUMA_NODE))
    node.until(lambda: asked(nic))
    (request,) = nic.asked["Allocate"]
    assert list(api.ResourceRequest.FromString(request).hint.nodes) == [0]


def test_an_annotation_counts_once_the_agent_has_taken_over(node: Node) -> None:
    node.stop()
    node.pods = (pod("a", level=DEDICATED),)
    node.start(adopted=False)
    id_, own = ContainerID("c1"), CPUSet.of(6, 7)
    there = RuntimeContainer(id_, "a-uid", "default", "a", "main", answered=own)
    node.manager.observe_containers([there])
    node.role.step()
    assert node.cpus() == "nothing"
    node.role.take_over()
    assert node.cpus() == "6-7"
    ((name, reason, _),) = node.events.pods
    assert (name, reason) == ("a", "PluginAnswerKept")
