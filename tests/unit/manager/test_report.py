from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cpupool.core.cgroups import POD_ITSELF, FoundContainer, Writer
from cpupool.core.cpu_manager import (
    CPUManager,
    Misfit,
    Scope,
    StaticOptions,
    Suppression,
    TopologyHint,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.plugin_facts import AnswerPart, RecordedAnswer
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.core.workloads import ContainerKind
from cpupool.manager.manager import Manager
from cpupool.manager.report import (
    NodeResource,
    NodeStatus,
    PluginAnswer,
    PluginReport,
    PluginStatus,
    describe,
)
from cpupool.manager.status_json import from_json, to_json
from cpupool.policies.qrm.katalyst import NIC_NAME
from cpupool.policies.view import Size
from tests.builders import container, given, pod
from tests.machines import MACHINES
from tests.unit.manager import plugged

MACHINE = MACHINES["laptop_4c8t"]
BEFORE = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,6"))
AFTER = NodePools.of(Pool.named("exclusive_a", "4"), Pool.named("shared_b", "0,6"))


def edited(*, moves_pinned: bool = True) -> NodeStatus:
    """Describe a node whose pools were edited while a pod had CPUs of both."""
    manager = Manager(Names(), moves_pinned=moves_pinned)
    manager.reconfigure(BEFORE, MACHINE.topology())
    owner = pod("owner", container(exclusive_a=1, shared_a=2))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a="2", shared_a="0,1"))
    manager.reconfigure(AFTER, MACHINE.topology())
    found = [FoundContainer("owner-uid", "main-id", "path", "0,2,6")]
    return describe(*manager.snapshot(), found, "", Writer.NRI)


@pytest.mark.parametrize(
    "manager",
    [
        CPUManager(),
        CPUManager("static", 2),
        CPUManager("static", 2, topology_scope=Scope.POD),
        CPUManager(
            "static",
            CPUSet.of(2),
            StaticOptions(full_pcpus_only=True, strict_cpu_reservation=True),
            TopologyPolicy.RESTRICTED,
            Misfit.SHARE,
        ),
        CPUManager("koordinator", 2, suppression=Suppression(50, 10)),
    ],
)
def test_the_cpu_manager_of_a_status_comes_back_from_json(manager: CPUManager) -> None:
    status = NodeStatus(NodePools.of(Pool.named("default", "0-3"), cpu_manager=manager), ())
    written = json.loads(json.dumps(to_json(status)))
    assert from_json(written) == status

    del written["cpuManager"]
    assert from_json(written).pools.cpu_manager == CPUManager()


def test_what_pods_hold_of_pools_that_shrank_or_went_is_shown() -> None:
    assert edited().draining == {"exclusive_a": 1, "shared_a": 2}


def test_a_container_that_keeps_older_shared_cpus_is_where_it_belongs_and_says_so() -> None:
    (kept,) = edited(moves_pinned=False).containers
    assert kept.wanted == CPUSet.parse("0,2,6")
    assert kept.reason.startswith("stale-shared: ")

    (moved,) = edited().containers
    assert (moved.wanted, moved.reason) == (CPUSet.of(2), "")


def test_what_the_kernel_has_moved_into_a_pod_is_shown_under_the_pods_name() -> None:
    manager = Manager(Names())
    manager.reconfigure(BEFORE, MACHINE.topology())
    manager.observe(pods=[pod("web")])
    found = [FoundContainer(uid, POD_ITSELF, "path", "0-7") for uid in ("web-uid", "late-uid")]
    known, unknown = describe(*manager.snapshot(), found).containers
    assert known.name == "default/web (moved by the kernel)"
    assert unknown.name == "late-uid (moved by the kernel)"
    assert str(known.wanted) == str(unknown.wanted) == "1,7"


@pytest.mark.parametrize(
    "policy",
    [
        PoolPolicy(),
        PoolPolicy(
            CPUBindPolicy.FULL_PHYSICAL_CORES,
            NUMAPolicy.DISTRIBUTED,
            align_by_uncore_cache=False,
            exclusive=ExclusivePolicy.NUMA_NODE,
            reserved=CPUSet.of(4),
        ),
        PoolPolicy(align_by_uncore_cache=True),
    ],
)
def test_a_status_comes_back_from_json_as_it_was(policy: PoolPolicy) -> None:
    manager = advised("2", "4")
    status = describe(*manager.snapshot(), [FOUND], choices=manager.choices())
    changed = (replace(pool, policy=policy) for pool in status.pools)
    pools = NodePools.of(*changed, mixed=MixedCPUs("shared_b", 7))
    whole = replace(
        status,
        pools=pools,
        offline=CPUSet.of(3),
        blocked=CPUSet.of(5),
        sizes={"best effort": Size(4, 16, "the load")},
        nri="waits for default/slow until 2027-01-15T08:00:00Z",
    )
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole
    before = {key: value for key, value in to_json(whole).items() if key != "nri"}
    assert from_json(before) == replace(whole, nri=""), "of an agent that never waits"

    old = edited(moves_pinned=False)
    assert from_json(json.loads(json.dumps(to_json(old)))) == old


FOUND = FoundContainer("owner-uid", "main-id", "path", "2,4")


def advised(*ids: str) -> Manager:
    """Make a manager that was asked twice, for a pod that has ended and for one that runs."""
    manager = Manager(Names())
    manager.reconfigure(
        NodePools.of(Pool.named("exclusive_a", "2,4,6"), Pool.named("exclusive_b", "0")),
        MACHINE.topology(),
    )
    manager.preferred("exclusive_a", ("2", "4", "6"), (), 1)
    manager.preferred("exclusive_a", ("2", "4"), (), 2)
    manager.preferred("exclusive_b", ("0",), (), 1)
    owner = pod("owner", container(exclusive_a=len(ids)))
    manager.observe(pods=[owner])
    manager.accept(given(owner, exclusive_a=",".join(ids)))
    return manager


@pytest.mark.parametrize(
    ("ids", "chosen"),
    [
        pytest.param(("2", "4"), "2,4", id="as advised"),
        pytest.param(("4", "6"), "2,4", id="in part"),
        pytest.param(("2",), None, id="another number was for another pod"),
        pytest.param(("6",), None, id="not of what was advised"),
    ],
)
def test_a_choice_is_that_of_the_container_that_got_its_devices(
    ids: tuple[str, ...], chosen: str | None
) -> None:
    manager = advised(*ids)
    (owner,) = describe(*manager.snapshot(), [FOUND], choices=manager.choices()).containers
    (share,) = owner.shares
    assert (share.choice and str(share.choice.cpus)) == chosen


def test_an_init_containers_devices_are_told_as_used_again() -> None:
    manager = Manager(Names())
    manager.reconfigure(BEFORE, MACHINE.topology())
    first = container("first", ContainerKind.INIT, exclusive_a=1)
    later = container("later", ContainerKind.INIT, exclusive_a=1)
    owner = pod("owner", first, later, container(exclusive_a=1), container("own", exclusive_a=1))
    manager.observe(pods=[owner])
    for name, ids in {"first": "2", "later": "2", "main": "2", "own": "4"}.items():
        manager.accept(given(owner, name, exclusive_a=ids))
    names = ("first", "later", "main", "own")
    found = [FoundContainer("owner-uid", f"{name}-id", "path", "2") for name in names]
    containers = describe(*manager.snapshot(), found).containers
    reused = {one.name.rpartition("/")[2]: one.shares[0].reused_from for one in containers}
    assert reused == {"first": "", "later": "first", "main": "first", "own": ""}


def test_devices_of_a_shared_pool_are_no_particular_cpus() -> None:
    (owner,) = edited().containers
    exclusive, shared = owner.shares
    assert (exclusive.devices, exclusive.given) == (1, CPUSet.of(2))
    assert (shared.devices, shared.given, shared.requested) == (2, CPUSet(), 2)


def test_what_is_reserved_offline_or_owned_is_not_free() -> None:
    pool = Pool.named("exclusive_a", "2,4,6")
    reserving = replace(pool, policy=PoolPolicy(reserved=CPUSet.of(6)))
    status = NodeStatus(NodePools.of(reserving), (), offline=CPUSet.of(4))
    assert status.free(reserving) == CPUSet.of(2)
    (owner,) = edited().containers
    assert replace(status, containers=(owner,)).free(reserving) == CPUSet()


def test_a_text_that_names_no_interface_is_no_nic() -> None:
    answer = AnswerPart(annotations={NIC_NAME: "e" * 16})
    given = {plugged.ref("a"): {"NIC": RecordedAnswer(1.0, {"NIC": answer})}}
    asks = plugged.pod("a", plugged.container(running=True, more={"NIC": 1.0}))
    facts, resolution = plugged.manager(asks, given=given, served=("NIC",)).snapshot()
    found = [FoundContainer("a-uid", "main-id", "path", "0-7")]
    status = describe(facts, resolution, found, "", Writer.NRI)
    ((nic,),) = [container.answers for container in status.containers]
    assert (nic.values, nic.texts) == ({}, (NIC_NAME,))


def test_what_plugins_have_answered_is_shown_with_what_is_missing() -> None:
    nic = AnswerPart(env={"NIC": "eth0"}, annotations={NIC_NAME: "eth0"})
    hint = TopologyHint(frozenset({0}), preferred=True)
    answered = {
        "cpu": plugged.cpus("1-2"),
        "memory": RecordedAnswer(1.0, {"memory": nic}, refused="bad answer"),
        "example.com/nic": RecordedAnswer(1.0, {"example.com/nic": nic}, hint),
    }
    more = {"memory": 1.0, "cpu": 2.0, "example.com/nic": 1.0, "example.com/gpu": 1.0}
    pods = [
        plugged.pod("a", plugged.container(running=True, more=more)),
        plugged.pod("b", plugged.container(running=True)),
    ]
    served = ("cpu", "memory", "example.com/nic", "example.com/gpu")
    node = plugged.manager(*pods, given={plugged.ref("a"): answered}, served=served)
    facts, resolution = node.snapshot()
    found = [FoundContainer(f"{name}-uid", "main-id", "path", "0-7") for name in ("a", "b")]
    there = PluginReport(
        ("/plugins",),
        (PluginStatus("/plugins/cpu.sock", "cpu"), PluginStatus("/plugins/x.sock", "", "is mute")),
        {(plugged.ref("a"), "cpu"): "2026-01-01T00:00:00Z"},
        (NodeResource("example.com/nic", 7), NodeResource("memory", 0, "no", "yes")),
    )

    status = describe(facts, resolution, found, "", Writer.NRI, plugins=there)

    assert from_json(json.loads(json.dumps(to_json(status)))) == status
    assert (status.plugin_folders, status.plugins) == (there.folders, there.plugins)
    assert status.node_resources == there.node_resources
    assert status.lost == ("example.com/gpu", "example.com/nic", "memory")
    awaited = "the plugin for {} has not answered for container main yet"
    assert {container.name: container.answers for container in status.containers} == {
        "default/a/main": (
            PluginAnswer("cpu", {"CpusetCpus": "1-2"}, confirmed="2026-01-01T00:00:00Z"),
            PluginAnswer("example.com/gpu", why=awaited.format("example.com/gpu")),
            PluginAnswer("example.com/nic", {"NIC": "eth0"}, ("NIC", NIC_NAME), "0"),
            PluginAnswer("memory", why="container main: bad answer"),
        ),
        "default/b/main": (PluginAnswer("cpu", why=awaited.format("cpu")),),
    }
