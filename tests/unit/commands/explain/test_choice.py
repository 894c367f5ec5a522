from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from cpupool.commands.shell import reasons
from cpupool.core.cgroups import FoundContainer, Writer
from cpupool.core.cpu_manager import CPUManager, Scope
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS, Names
from cpupool.core.orchestration import BindPolicy, Orchestration, QoS
from cpupool.core.pool_policy import NUMAPolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool, PoolKind
from cpupool.core.withheld import Withheld
from cpupool.core.workloads import ContainerKind, ContainerRef, CPUMoves, QoSClass
from cpupool.manager.manager import Manager
from cpupool.manager.report import describe
from tests import moving
from tests.builders import container, given, pod
from tests.machines import MACHINES
from tests.policies import LowestCPUs, TellingCPUs
from tests.unit.commands.explain.node import (
    BY_NRI,
    DEFAULT,
    LAPTOP,
    SHARED,
    Node,
    explain,
    steps,
    without,
)

if TYPE_CHECKING:
    import pytest


def test_exclusive_cpus_are_followed_from_the_request_to_the_cgroup(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.advise("exclusive_a", 1, "2", "4")
    node.run("web", container(exclusive_a=1), exclusive_a="2")

    assert explain(file, node.status(web="2"), "default/web/main") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("default/web/main: 2\n  1. request: ")
    lines = steps(printed)
    assert lines[:3] == [
        "request: it requests 1 of exclusive_a => 2,4",
        "pool: exclusive_a has CPUs 2,4, one owner each, singleThreaded => 2,4",
        "free: 2 of the pool's 2 CPUs can be chosen => 2,4",
    ]
    assert lines[-3:] == [
        "devices: the kubelet gave these, as GetPreferredAllocation had advised => 2",
        f"enforcement: {BY_NRI} => 2",
        "found: its cgroup has these CPUs: it is where it belongs => 2",
    ]


def test_the_guide_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    telco = MACHINES["telco_2s_2n_16c32t"]
    telco.write(tmp_path)
    manager = Manager(Names())
    pool = Pool.named("exclusive_a", "6-7,10-13", multi_threaded=True)
    manager.reconfigure(NodePools.of(pool, DEFAULT), telco.topology())
    manager.preferred("exclusive_a", [str(cpu) for cpu in pool.cpus], (), 3)
    upf = pod("upf", container(exclusive_a=3))
    manager.observe(pods=[upf])
    manager.accept(given(upf, exclusive_a="10,11,12"))
    found = FoundContainer("upf-uid", "main-id", "path", "10-12,26-28")
    status = describe(*manager.snapshot(), [found], "", Writer.NRI, choices=manager.choices())

    assert explain(tmp_path / "status.json", status, "default/upf") == 0
    guide = (Path(__file__).parents[4] / "docs/user/troubleshooting.md").read_text()
    shown = guide.partition("$ cpupool explain default/upf\n")[2].partition("```")[0]
    assert shown.startswith("default/upf/main")
    assert shown in capsys.readouterr().out


def test_advice_that_the_kubelet_did_not_follow(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(Pool.named("exclusive_a", "2,4,6"), DEFAULT)
    node.advise("exclusive_a", 2, "2", "4", "6")
    node.run("web", container(exclusive_a=2), exclusive_a="4,6")

    assert explain(file, node.status(web="4,6"), "default/web") == 0
    (line,) = (one for one in steps(capsys.readouterr().out) if one.startswith("devices"))
    assert line.startswith(
        "devices: the kubelet did not follow GetPreferredAllocation, which advised 2,4: its"
    )
    assert line.endswith(" => 4,6")


def test_what_is_chosen_without_certainty_says_so(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.advise("exclusive_a", 1, "2", "4")
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    status = node.status(web="2")
    (web,) = status.containers
    (share,) = web.shares
    assert share.choice is not None
    guessed = replace(share, choice=replace(share.choice, proven=False))

    explain(file, replace(status, containers=(replace(web, shares=(guessed,)),)), "web")
    assert "search: the best of the sets that were looked at" in capsys.readouterr().out


def test_siblings_are_added_and_what_is_offline_is_left_out(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(exclusive_m=1), exclusive_m="6")
    node.manager.update_topology(without(7))

    assert explain(file, node.status(web="6"), "default/web/main") == 0
    lines = steps(capsys.readouterr().out)
    assert "multiThreaded: the siblings on its cores are added, CPUs 7 => 6-7" in lines
    assert "offline: CPUs 7 are offline: it runs there again when they are back => 6" in lines


def test_the_cgroup_that_has_taken_a_cpu_is_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(exclusive_m=1), exclusive_m="6")
    part = Withheld(CPUSet.of(7), "/dpdk.service", "isolated")
    node.manager.update_topology(replace(without(7), withheld=(part,)))

    assert explain(file, node.status(web="6"), "default/web/main") == 0
    lines = steps(capsys.readouterr().out)
    assert f"offline: {part.why}: it runs there again when they are back => 6" in lines


def test_a_pools_policy_and_what_it_does_not_offer(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = PoolPolicy(numa=NUMAPolicy.LEAST_ALLOCATED, reserved=CPUSet.of(2))
    pool = Pool("exclusive_a", PoolKind.EXCLUSIVE, CPUSet.parse("2,4,6"), policy=policy)
    node = Node(pool, DEFAULT)
    node.run("web", container(exclusive_a=1), exclusive_a="4")
    node.manager.update_topology(without(6))

    assert explain(file, node.status(web="4"), "web") == 0
    assert (
        "pool: exclusive_a has CPUs 2,4,6, one owner each, singleThreaded, numaPolicy"
        " leastAllocated, reserved 2, CPUs 6 offline => 4"
    ) in steps(capsys.readouterr().out)


def test_shared_cpus(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(Pool.named("shared_b", "1,4"), Pool.named("exclusive_a", "2"), DEFAULT)
    node.run("web", container(shared_b=2), shared_b="0,1")
    node.manager.update_topology(without(4))

    assert explain(file, node.status(web="1"), "web") == 0
    assert steps(capsys.readouterr().out)[:4] == [
        "request: it requests 2 milli-CPUs of shared_b => 1,4",
        "pool: shared_b has CPUs 1,4, CPUs 4 offline => 1",
        "devices: the kubelet gave 2, one per milli-CPU => 1,4",
        "shared: CPUs 4 are offline, or on a core that a pod owns => 1",
    ]


def test_shared_cpus_by_openshifts_resource(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    mixed = replace(node.manager.pools(), mixed=MixedCPUs("shared_b"))
    node.manager.reconfigure(mixed, LAPTOP.topology())
    asking = container(shared_cpus=True, exclusive_a=1)
    node.run("web", asking, **{"exclusive_a": "2", ENABLE_SHARED_CPUS: "7"})

    assert explain(file, node.status(web="1-2"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[0] == "request: it requests 1 of exclusive_a and 1 of enable-shared-cpus => 1-2,4"
    assert "pool: enable-shared-cpus has CPUs 1 => 1" in lines
    assert "devices: the kubelet gave 1, for the container => 1" in lines


def test_cpus_that_the_cpu_manager_policy_has_chosen(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    policy = CPUManager("lowest", installed=LowestCPUs)
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=policy)
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    node.run("web", container(cpu=2000))

    assert explain(file, node.status(web="0-1"), "web") == 0
    assert steps(capsys.readouterr().out)[:2] == [
        "request: it requests 2 whole CPUs, with an equal limit, in a Burstable pod => 0-1",
        "cpuManager: the policy lowest has chosen them for the whole pod => 0-1",
    ]


def test_a_container_has_the_reasons_of_its_own_choice_and_none_of_another_container(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    pools = NodePools.of(cpu_manager=CPUManager("telling", installed=TellingCPUs))
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    node.run("web", container(cpu=2000), container("last", cpu=1000))

    assert explain(file, node.status(web="0-1"), "web") == 0
    assert steps(capsys.readouterr().out)[1:3] == [
        "telling: the lowest CPUs that are free => 0-1",
        "cpuManager: the policy telling has chosen them for the whole pod => 0-1",
    ]


def test_cpus_that_a_policy_gives_without_a_request(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    pools = NodePools.of(cpu_manager=CPUManager("telling", installed=TellingCPUs))
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    node.run("web", container())

    assert explain(file, node.status(web="0"), "web") == 0
    assert steps(capsys.readouterr().out)[0] == (
        "request: it requests no whole CPUs, and the policy telling gives it some => 0"
    )


def test_cpus_that_an_init_container_has_at_another_time(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    pools = NodePools.of(cpu_manager=CPUManager("static", CPUSet.parse("0-1")))
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    init = container("init", ContainerKind.INIT, cpu=1000)
    node.run("web", init, container(cpu=2000))

    assert explain(file, node.status(web="2-3"), "web") == 0
    assert steps(capsys.readouterr().out)[1] == (
        "cpuManager: the policy static has chosen them for the whole pod, also for init, which runs"
        " at another time; CPUs 0-1 are reserved => 2-3"
    )


def test_resizes_are_told_with_their_times_and_the_cpus_that_leave(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "time", SimpleNamespace(time=lambda: 1_795_356_003.5))
    node = Node()
    manager = CPUManager("dynamic", CPUSet.parse("0-1"))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager)
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    web = node.run("web", container(cpu=2000))
    ref = ContainerRef(web.cgroup_uid, "main")
    node.manager.resize(ref, 4, 1_795_355_000)
    node.manager.resize(ref, 3)
    status = node.status(web="2-5", notices={ref: 1_795_356_005.0})

    assert explain(file, status, "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[1:6] == [
        "resize: 2026-11-22T13:43:20Z: from cpu 2 to 4: it got CPUs 4-5 => 2-5",
        "resize: without the agent: from cpu 4 to 3: it gave CPUs 5 back => 2-4",
        (
            "cpuManager: the policy dynamic has chosen them for the whole pod; CPUs 0-1 are"
            " reserved => 2-4"
        ),
        "own: they are its own => 2-5",
        (
            "leaving: a resize changes its CPUs from 2-5 to 2-4; CPU 5 leaves in 2 s, at"
            " 2026-11-22T14:00:05Z, or when no thread needs it => 2-4"
        ),
    ]

    node.manager.narrow(ref, CPUSet.parse("2-4"), CPUSet.of(5))
    assert explain(file, node.status(web="2-5"), "web") == 1
    assert (
        "leaving: a resize changes its CPUs from 2-5 to 2-4; CPU 5 is free when the container has"
        " left it => 2-4"
    ) in steps(capsys.readouterr().out)

    node.manager.settle({ref: CPUSet.parse("2-4")})
    assert explain(file, node.status(web="2-4"), "web") == 0
    assert "leaving" not in capsys.readouterr().out


def test_a_move_is_told_with_its_reason_and_the_cpus_that_leave(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = moving.Node(tmp_path)
    node.run("a", 6)
    node.run("gone", 8)
    node.run("b", 4, CPUMoves.ANY)
    node.settle()
    node.end("gone")
    node.run("late", 12)
    node.until(moving.AGE_S)
    status = describe(*node.manager.snapshot(), node.found(), "", Writer.NRI)
    assert explain(file, status, "b") == 0
    shown = steps(capsys.readouterr().out)
    assert (
        "compaction: 2026-11-18T11:16:40Z: it moved from CPUs 9-10,25-26 to 4-5,20-21, so that pod"
        " default/late can have its CPUs => 4-5,20-21"
    ) in shown
    assert (
        "leaving: a move changes its CPUs from 4-5,9-10,20-21,25-26 to 4-5,20-21; CPUs 9-10,25-26"
        " leave when its notice ends => 4-5,20-21"
    ) in shown


def test_cpus_of_a_koordinator_pod_with_the_wishes_that_they_do_not_keep(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    manager = CPUManager("koordinator", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager)
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    told = Orchestration(QoS.LSR, prod=True, bind=BindPolicy.SPREAD_BY_PCPUS)
    main = replace(container(cpu=5000), request_milli=5000)
    node.manager.observe(pods=[replace(pod("web", main), orchestration=told)])

    assert explain(file, node.status(web="1-4,6"), "web") == 0
    assert steps(capsys.readouterr().out)[1:5] == [
        "bind policy: SpreadByPCPUs: the pod prefers it => 1-7",
        "allocate strategy: leastAllocated => 1-4,6",
        "bind policy: SpreadByPCPUs is not kept: CPUs of one core are among them => 1-4,6",
        (
            "cpuManager: the policy koordinator has chosen them for the whole pod; CPUs 0 are"
            " reserved => 1-4,6"
        ),
    ]


def test_shared_cpus_of_a_pod_without_the_numa_node_that_it_wishes(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    manager = CPUManager("koordinator", reserved=CPUSet.of(0))
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=manager)
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    told = Orchestration(QoS.LS, bind=BindPolicy.CONSTRAINED_BURST)
    node.manager.observe(pods=[replace(pod("web", cpu=9000), orchestration=told)])

    assert explain(file, node.status(web="0-7"), "web") == 0
    assert steps(capsys.readouterr().out)[1:3] == [
        "class: a pod of the class LS runs on the shared CPUs => 0-7",
        (
            "reason: ConstrainedBurst: no NUMA node has 9 shared CPUs, as many as the pod's limit"
            " => 0-7"
        ),
    ]


def test_shared_cpus_beside_those_of_the_kubelets_static_cpu_manager(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(SHARED)
    node.manager.reconfigure(NodePools.of(SHARED, mixed=MixedCPUs("shared_b")), LAPTOP.topology())
    node.manager.observe(static_cpus=CPUSet.parse("2-7"))
    asking = replace(container(), requests={ENABLE_SHARED_CPUS: 1}, whole_cpus=2)
    node.run("web", asking, **{KUBELET_CPUS: "2,6", ENABLE_SHARED_CPUS: "0"})
    node.run("plain", container())

    assert explain(file, node.status(web="1-2,6", plain="0,3-5,7"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[0] == (
        "request: it requests 1 of enable-shared-cpus and 2 of the kubelet's own CPUs => 1-2,6"
    )
    assert "kubelet: the kubelet's static CPU manager gave these => 2,6" in lines
    assert "together: the CPUs of all its pools => 1-2,6" in lines

    assert explain(file, node.status(plain="0,3-5,7"), "plain") == 0
    places = "kubelet: the kubelet's static CPU manager places it, and cpupool leaves it there"
    assert steps(capsys.readouterr().out) == [
        "request: it requests no pool => none",
        f"{places} => 0,3-5,7",
        "found: its cgroup has these CPUs: it is where it belongs => 0,3-5,7",
    ]


def test_the_parts_of_a_bubble_and_its_rest(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    manager = CPUManager("static", CPUSet.of(0, 1), topology_scope=Scope.POD, pod_level=True)
    node.manager.reconfigure(NodePools.of(cpu_manager=manager), LAPTOP.topology())
    node.manager.adopt(())
    web = pod("web", replace(container("db"), level_cpus=2), container("logs"))
    web = replace(web, qos=QoSClass.GUARANTEED, level_milli=3000, level_cpus=3)
    node.manager.observe(pods=[web])
    found = (
        FoundContainer("web-uid", "db-id", "p", "2-3"),
        FoundContainer("web-uid", "logs-id", "q", "4"),
    )
    status = describe(*node.manager.snapshot(), found)

    def told(name: str) -> list[str]:
        assert explain(file, status, f"default/web/{name}") == 0
        return steps(capsys.readouterr().out)[:3]

    chosen = (
        "cpuManager: the policy static has chosen the bubble 2-4 for the resources of the whole"
    )
    kept, of_own = "CPUs 0-1 are reserved", "in a pod with resources of its own"
    assert told("db") == [
        f"request: it requests 2 whole CPUs, {of_own} => 2-3",
        f"{chosen} pod: this part is the container's own; {kept} => 2-3",
        "own: they are its own => 2-3",
    ]
    assert told("logs") == [
        f"request: it requests no whole CPUs with equal limits, {of_own} => 4",
        f"{chosen} pod: its other containers share these, and run nowhere else; {kept} => 4",
        "own: they are its pod's: no other pod runs there => 4",
    ]
