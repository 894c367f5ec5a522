"""Our plugins under managers that are not ours: stand-ins call as Katalyst's and the kubelet's do.

The order of the calls and the fields are those of kubewharf/enhanced-k8s (the patched kubelet 1.24,
qosresourcemanager/manager.go) and of katalyst-core (pkg/agent/orm/manager.go). These programs have
not run with our plugins.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cpupool.api import pluginregistration_pb2 as registration
from cpupool.api import resourceplugin_pb2 as api
from cpupool.plugins.nic import BANDWIDTH
from tests.processes import ForkedProcess, Process
from tests.resource_plugins import REGISTRATION, SERVICE
from tests.scenarios.seeds.test_qos_resource_manager import EXAMPLE_3, MEMORY_BYTES, PROPOSED
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

CONFIG = f"{EXAMPLE_3}\npools: {{share: {{}}}}\n"
MILLI = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
CORES = "example.com/best-effort-cpu"
PROPOSED_ROLE = "kubernetes.io/pod-role"
MAIN, INIT = api.MAIN, api.INIT


@dataclass
class Manager:
    """What a manager knows, and how it calls.

    Attributes:
        sockets: the folder that its plugin watcher watches.
        names: resource of a pod → name of the plugin.
        of_katalyst: whether it calls as Katalyst's, else as the patched kubelet.
        channels: resource → plugin.
    """

    sockets: Path
    names: Mapping[str, str]
    of_katalyst: bool
    channels: dict[str, grpc.Channel] = field(default_factory=dict)
    reconciled: set[str] = field(default_factory=set)

    def watch(self, count: int) -> None:
        """Register every plugin whose socket is in the folder."""
        # As the kubelet's watcher, without names that begin with a dot.
        eventually(lambda: len(list(self.sockets.glob("[!.]*.sock"))) == count, "sockets")
        for socket in sorted(self.sockets.glob("[!.]*.sock")):
            channel = grpc.insecure_channel(f"unix:{socket}")
            grpc.channel_ready_future(channel).result(DEADLINE_S)
            found = call(channel, REGISTRATION, "GetInfo", registration.InfoRequest())
            info = registration.PluginInfo.FromString(found)
            assert (info.type, list(info.supported_versions)) == ("ResourcePlugin", ["v1alpha1"])
            # The same socket serves the plugin.
            assert info.endpoint in {"", str(socket)}
            found = call(channel, SERVICE, "GetResourcePluginOptions", api.Empty())
            options = api.ResourcePluginOptions.FromString(found)
            assert options.with_topology_alignment
            assert not options.pre_start_required
            status = registration.RegistrationStatus(plugin_registered=True)
            call(channel, REGISTRATION, "NotifyRegistrationStatus", status)
            self.channels[info.name] = channel
            if options.need_reconcile:
                self.reconciled.add(info.name)

    def admit(
        self, name: str, role: str, requests: Mapping[str, float], *, kind: api.ContainerType = MAIN
    ) -> dict[str, api.ResourceAllocationInfo]:
        """Ask for hints, merge them, and allocate, as for a container of a pod that starts."""
        hints = [self.hints(name, role, item, kind) for item in requests.items()]
        hint = merged([found for found in hints if found is not None])
        found: dict[str, api.ResourceAllocationInfo] = {}
        for item in requests.items():
            request = self.request(name, role, item, kind, mapped=True)
            if hint is not None:
                request.hint.CopyFrom(api.TopologyHint(nodes=hint, preferred=True))
            reply = self.ask(request.resource_name, "Allocate", request)
            response = api.ResourceAllocationResponse.FromString(reply)
            if response.HasField("allocation_result"):
                # Without one there is nothing to do; an empty one would be stored.
                assert response.allocation_result.resource_allocation
                found |= infos(response.allocation_result)
        return found

    def hints(
        self, name: str, role: str, item: tuple[str, float], kind: api.ContainerType = MAIN
    ) -> list[api.TopologyHint] | None:
        request = self.request(name, role, item, kind, mapped=False)
        reply = self.ask(request.resource_name, "GetTopologyHints", request)
        entries = api.ResourceHintsResponse.FromString(reply).resource_hints
        # Go reads an entry without hints as a refusal, also where Python cannot tell.
        assert all(entry.HasField("value") and entry.value.hints for entry in entries)
        return next((list(entry.value.hints) for entry in entries), None)

    def request(
        self,
        name: str,
        role: str,
        item: tuple[str, float],
        kind: api.ContainerType,
        *,
        mapped: bool,
    ) -> api.ResourceRequest:
        resource, amount = item
        plugin = self.names.get(resource, resource)
        # The kubelet keeps the pod's name of the resource; Katalyst's manager only in hints.
        key = plugin if self.of_katalyst and mapped else resource
        return api.ResourceRequest(
            pod_uid=f"{name}-uid",
            pod_namespace="default",
            pod_name=name,
            container_name="main" if kind == MAIN else "init",
            container_type=kind,
            resource_name=plugin,
            resource_requests={key: amount},
            labels={"app": name},
            annotations={PROPOSED_ROLE: role},
            # The kubelet has no such field.
            native_qos_class="Burstable" if self.of_katalyst else "",
        )

    def reconcile(self) -> dict[str, dict[str, str]]:
        """Return pod and resource → value, of the plugins that want to be asked again."""
        found: dict[str, dict[str, str]] = {}
        for resource in sorted(self.reconciled):
            request = api.GetResourcesAllocationRequest()
            reply = self.ask(resource, "GetResourcesAllocation", request)
            pods = api.GetResourcesAllocationResponse.FromString(reply).pod_resources
            for uid, containers in pods.items():
                for result in containers.container_resources.values():
                    values = {key: info.allocation_result for key, info in infos(result).items()}
                    found.setdefault(uid, {}).update(values)
        return found

    def remove(self, name: str) -> None:
        for resource in self.channels:
            self.ask(resource, "RemovePod", api.RemovePodRequest(pod_uid=f"{name}-uid"))

    def ask(self, resource: str, method: str, request: Message) -> bytes:
        return call(self.channels[resource], SERVICE, method, request)

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()


def call(channel: grpc.Channel, service: str, method: str, request: Message) -> bytes:
    answer: Any = channel.unary_unary(f"/{service}/{method}")
    reply: bytes = answer(request.SerializeToString(), timeout=DEADLINE_S)
    return reply


def infos(result: api.ResourceAllocation) -> dict[str, api.ResourceAllocationInfo]:
    return {entry.key: entry.value for entry in result.resource_allocation}


def merged(found: Sequence[Sequence[api.TopologyHint]]) -> list[int] | None:
    """Return the nodes of the restricted policy: preferred by all; None for no preference."""
    preferred: list[set[tuple[int, ...]]] = [
        {tuple(hint.nodes) for hint in hints if hint.preferred} for hints in found
    ]
    if not preferred:
        return None
    common = preferred[0].intersection(*preferred[1:])
    best = min(common, key=lambda nodes: (len(nodes), nodes))
    return list(best)


@contextmanager
def plugins(folder: Path) -> Iterator[Process]:
    process = ForkedProcess(
        *("resource-plugin", "cpu", "memory", "nic"),
        *("--host-root", folder, "--config", folder / "etc/plugins.yaml"),
    )
    with process.collecting(signal.SIGTERM):
        yield process


@contextmanager
def managed(folder: Path, *, of_katalyst: bool) -> Iterator[Manager]:
    """Run the plugins, and a manager that has found them."""
    with ExitStack() as opened:
        opened.enter_context(plugins(folder))
        sockets = folder / "var/lib/cpupool/resource-plugins"
        manager = Manager(sockets, {MILLI: "cpu", CORES: "cpu"}, of_katalyst)
        opened.callback(manager.close)
        manager.watch(4)
        yield manager


@pytest.fixture(params=["kubelet", "katalyst"])
def of_katalyst(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "katalyst")


@pytest.fixture
def machine(folder: Path) -> Path:
    PROPOSED.write(folder)
    for node, bytes_ in enumerate(MEMORY_BYTES):
        meminfo = f"Node {node} MemTotal:  {bytes_ // 1024} kB\n"
        (folder / f"sys/devices/system/node/node{node}/meminfo").write_text(meminfo)
    for path in ("etc", "var/run/netns", "sys/class/net/eth0/device"):
        (folder / path).mkdir(parents=True)
    (folder / "var/run/netns/ns1").touch()
    for name, text in (("operstate", "up"), ("speed", "25000"), ("device/numa_node", "0")):
        (folder / "sys/class/net/eth0" / name).write_text(f"{text}\n")
    (folder / "etc/plugins.yaml").write_text(CONFIG)
    return folder


def test_the_proposals_examples(machine: Path, *, of_katalyst: bool) -> None:
    with managed(machine, of_katalyst=of_katalyst) as manager:
        assert manager.channels.keys() == {"cpu", "memory", "NIC", BANDWIDTH}
        assert manager.reconciled == {"cpu", "memory"}
        storage = manager.admit("pod1", "storage-service", {"cpu": 20, "memory": 40e9})
        assert storage["cpu"].oci_property_name == "CpusetCpus"
        assert storage["cpu"].allocation_result == "2-21"
        assert storage["memory"].oci_property_name == "CpusetMems"
        assert storage["memory"].allocation_result == "0"
        for name, cpus in (("pod2", "42-51"), ("pod3", "52-61")):
            asks = {"cpu": 10.0, "memory": 20e9, "NIC": 1.0}
            found = manager.admit(name, "numa-enhancement", asks)
            assert found["cpu"].allocation_result == cpus
            assert found["memory"].allocation_result == "1"
            nic = found["NIC"]
            assert (nic.oci_property_name, nic.is_node_resource, nic.is_scalar_resource) == (
                "",
                False,
                False,
            )
            assert [(list(hint.nodes), hint.preferred) for hint in nic.resource_hints.hints] == [
                ([1], True)
            ]
            assert dict(nic.envs) == {"AFFINITY_NIC_ADDR_IPV6": "fdbd:dc05:3:155::20"}
            assert nic.annotations["kubernetes.io/host-netns-path"] == "/var/run/netns/ns1"
        assert manager.reconcile() == {
            "pod1-uid": {"cpu": "2-21", "memory": "0"},
            "pod2-uid": {"cpu": "42-51", "memory": "1"},
            "pod3-uid": {"cpu": "52-61", "memory": "1"},
        }


def test_a_pod_of_a_pool_has_no_entry_for_hints_and_follows_the_pool(
    machine: Path, *, of_katalyst: bool
) -> None:
    with managed(machine, of_katalyst=of_katalyst) as manager:
        assert manager.hints("web", "", ("cpu", 2.0)) is None
        assert manager.admit("web", "", {"cpu": 2})["cpu"].allocation_result == "2-39,42-79"
        manager.admit("pod1", "storage-service", {"cpu": 20, "memory": 40e9})
        assert manager.reconcile()["web-uid"]["cpu"] == "22-39,42-79"
        for _ in range(2):
            manager.remove("pod1")
        assert manager.reconcile() == {"web-uid": {"cpu": "2-39,42-79"}}


def test_an_init_container_of_a_bound_pod_has_an_answer_without_a_result(
    machine: Path, *, of_katalyst: bool
) -> None:
    asks = {"cpu": 20.0, "memory": 40e9}
    with managed(machine, of_katalyst=of_katalyst) as manager:
        assert manager.admit("pod1", "storage-service", asks, kind=INIT) == {}
        assert manager.admit("pod1", "storage-service", asks)["cpu"].allocation_result == "2-21"


def test_a_mapped_name_of_the_same_unit(machine: Path, *, of_katalyst: bool) -> None:
    with managed(machine, of_katalyst=of_katalyst) as manager:
        found = manager.admit("pod1", "storage-service", {CORES: 2})
        assert found["cpu"].allocation_result == "2-3"


def test_a_mapped_name_of_another_unit(machine: Path, *, of_katalyst: bool) -> None:
    """Katalyst's manager puts the amount under the plugin's name in Allocate, as it is."""
    with managed(machine, of_katalyst=of_katalyst) as manager:
        hints = manager.hints("pod1", "storage-service", (MILLI, 2000.0))
        assert hints is not None
        assert [list(hint.nodes) for hint in hints] == [[0], [1]]
        if of_katalyst:
            with pytest.raises(grpc.RpcError, match="2000"):
                manager.admit("pod1", "storage-service", {MILLI: 2000})
            assert manager.reconcile() == {}
        else:
            found = manager.admit("pod1", "storage-service", {MILLI: 2000})
            assert found["cpu"].allocation_result == "2-3"


def test_a_refusal_is_an_error_and_leaves_nothing(machine: Path, *, of_katalyst: bool) -> None:
    with managed(machine, of_katalyst=of_katalyst) as manager:
        with pytest.raises(grpc.RpcError) as refused:
            manager.admit("pod1", "storage-service", {"cpu": 39})
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert manager.reconcile() == {}


def test_a_manager_that_starts_again_and_a_plugin_that_does_find_the_same(
    machine: Path, *, of_katalyst: bool
) -> None:
    asks = {"cpu": 20.0, "memory": 40e9}
    given = {"pod1-uid": {"cpu": "2-21", "memory": "0"}}
    with managed(machine, of_katalyst=of_katalyst) as manager:
        manager.admit("pod1", "storage-service", asks)
    with managed(machine, of_katalyst=of_katalyst) as manager:
        assert manager.reconcile() == given
        found = manager.admit("pod1", "storage-service", asks)
        assert found["cpu"].allocation_result == "2-21"
        assert manager.reconcile() == given
