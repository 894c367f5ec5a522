from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool import cli
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import ENABLE_SHARED_CPUS, KUBELET_CPUS, Names
from cpupool.core.pool_policy import NUMAPolicy, PoolPolicy
from cpupool.core.pools import CPUManager, MixedCPUs, NodePools, Pool, PoolKind
from cpupool.core.workloads import ContainerKind
from cpupool.manager.manager import Manager
from cpupool.manager.ports import FoundContainer, Way
from cpupool.manager.report import NodeStatus, describe, to_json
from tests.builders import container, given, pod
from tests.machines import MACHINES
from tests.round_robin import POLICIES

if TYPE_CHECKING:
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container, Pod

LAPTOP = MACHINES["laptop_4c8t"]
EXCLUSIVE = Pool.named("exclusive_a", "2,4")
THREADED = Pool.named("exclusive_m", "6", multi_threaded=True)
SHARED = Pool.named("shared_b", "1")
DEFAULT = Pool.named("default", "0")
BY_NRI = (
    "containers that start now are set by NRI: the container runtime does, before their first"
    " instruction"
)
CHOSEN_BEFORE = "choice: chosen before this agent started: not recorded"


class Node:
    """A manager that is told what a kubelet would tell it, and what its agent writes then."""

    def __init__(self, *pools: Pool, moves_pinned: bool = True) -> None:
        self.manager = Manager(Names(), moves_pinned=moves_pinned)
        self.reconfigure(*(pools or (EXCLUSIVE, THREADED, SHARED, DEFAULT)))
        self._pods: list[Pod] = []

    def reconfigure(self, *pools: Pool) -> None:
        self.manager.reconfigure(NodePools.of(*pools), LAPTOP.topology())

    def advise(self, pool: str, size: int, *available: str) -> None:
        """Let the kubelet ask which devices to take."""
        self.manager.preferred(pool, available, (), size)

    def run(self, name: str, *containers: Container, **ids: str) -> Pod:
        """Run a pod, the last container of which has these devices."""
        made = pod(name, *containers)
        self._pods.append(made)
        self.manager.observe(pods=self._pods)
        if ids:
            self.manager.accept(given(made, made.containers[-1].name, **ids))
        return made

    def status(self, waiting_for: str = "", **found: str) -> NodeStatus:
        """Say what the agent has seen: pod → the CPUs of its container `main`."""
        seen = [
            FoundContainer(f"{name}-uid", "main-id", "path", cpus) for name, cpus in found.items()
        ]
        state = self.manager.snapshot()
        return describe(*state, seen, waiting_for, Way.NRI, choices=self.manager.choices())


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the machine that is drawn, once."""
    folder = tmp_path_factory.mktemp("laptop")
    LAPTOP.write(folder)
    return folder


@pytest.fixture
def file(laptop: Path) -> Path:
    """Name a file that is not there yet, beside the machine."""
    made = laptop / "status.json"
    made.unlink(missing_ok=True)
    return made


def explain(file: Path, status: NodeStatus, name: str, *options: str) -> int:
    file.write_text(json.dumps(to_json(status)))
    machine = ["--topology", str(file.parent)]
    return cli.main(["explain", name, "--file", str(file), *machine, *options])


def steps(printed: str) -> list[str]:
    """Pick the numbered lines, without their numbers."""
    numbered = (line.partition(". ") for line in printed.splitlines())
    return [text for number, _, text in numbered if number.strip().isdigit()]


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
    status = describe(*manager.snapshot(), [found], "", Way.NRI, choices=manager.choices())

    assert explain(tmp_path / "status.json", status, "default/upf") == 0
    guide = (Path(__file__).parents[3] / "docs/user/troubleshooting.md").read_text()
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


def test_siblings_come_along_and_what_is_offline_is_left_out(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(exclusive_m=1), exclusive_m="6")
    node.manager.update_topology(without(7))

    assert explain(file, node.status(web="6"), "default/web/main") == 0
    lines = steps(capsys.readouterr().out)
    assert "multiThreaded: the siblings on its cores come along, CPUs 7 => 6-7" in lines
    assert "offline: CPUs 7 are offline: it runs there again when they are back => 6" in lines


def without(*gone: int) -> CPUTopology:
    """Read the laptop with some CPUs switched off."""
    return replace(LAPTOP.topology(), online=LAPTOP.topology().online - CPUSet(gone))


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
    node.manager = Manager(cpu_managers=POLICIES)
    pools = NodePools.of(Pool.named("default", "0-7"), cpu_manager=CPUManager("round-robin"))
    node.manager.reconfigure(pools, LAPTOP.topology())
    node.manager.adopt(())
    node.run("web", container(cpu=2000))

    assert explain(file, node.status(web="1-2"), "web") == 0
    assert steps(capsys.readouterr().out)[:2] == [
        "request: it requests no pool => 1-2",
        "cpuManager: the CPU manager policy has chosen these CPUs for it alone => 1-2",
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


def test_a_container_of_three_pools(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.advise("exclusive_a", 1, "2", "4")
    wishes = container(exclusive_a=1, exclusive_m=1, shared_b=3)
    node.run("web", wishes, exclusive_a="2", exclusive_m="6", shared_b="0,1,2")

    assert explain(file, node.status(web="1-2,6-7"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[0] == (
        "request: it requests 1 of exclusive_a and 1 of exclusive_m and 3 milli-CPUs of shared_b"
        " => 1-2,4,6"
    )
    assert sum(line.startswith("pool: ") for line in lines) == 3
    assert "together: the CPUs of all its pools => 1-2,6-7" in lines


@pytest.mark.parametrize(
    ("pools", "default", "cpus"),
    [
        ((EXCLUSIVE, DEFAULT), "the default pool default", "0"),
        ((EXCLUSIVE,), "the CPUs of no pool", "0-1,6-7"),
    ],
)
def test_a_container_that_requests_nothing(
    pools: tuple[Pool, ...],
    default: str,
    cpus: str,
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Node(*pools)
    node.run("web", container())

    assert explain(file, node.status(web=cpus), "web") == 0
    assert steps(capsys.readouterr().out)[:2] == [
        f"request: it requests no pool => {cpus}",
        f"default: it runs on {default} => {cpus}",
    ]


def test_a_confined_container(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1))

    assert explain(file, node.status(web="0"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert "devices: the kubelet has named none for it => none" in lines
    assert (
        "confined: the kubelet has named no devices of exclusive_a: it is kept on the default pool"
        " default, away from exclusive CPUs => 0"
    ) in lines


def test_a_pool_that_this_node_does_not_have(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(shared_x=5))

    assert explain(file, node.status(web="0"), "web") == 0
    assert steps(capsys.readouterr().out)[1] == "pool: this node has no pool shared_x now => none"


def test_a_container_that_was_moved_away(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")

    assert explain(file, node.status(web="0-7"), "web") == 1
    printed = capsys.readouterr().out
    assert printed.startswith("default/web/main: 0-7\n")
    last = steps(printed)[-1]
    assert last.startswith("found: its cgroup has other CPUs than 2: the agent moves it")
    assert last.endswith(" => 0-7")


def test_an_agent_that_was_started_later_does_not_know_the_choice(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")

    assert explain(file, node.status(web="2"), "web") == 0
    lines = steps(capsys.readouterr().out)
    assert lines[2].startswith(CHOSEN_BEFORE)
    assert lines[3] == "devices: the kubelet gave these => 2"


def test_devices_that_an_init_container_had_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()
    node.advise("exclusive_a", 2, "2", "4")
    first = container("first", ContainerKind.INIT, running=False, exclusive_a=2)
    web = node.run("web", first, container(exclusive_a=1), exclusive_a="4")
    node.manager.accept(given(web, "first", exclusive_a="2,4"))

    assert explain(file, node.status(web="4"), "web") == 0
    printed = capsys.readouterr().out
    assert "devices: the kubelet gave those of the init container first: it reuses" in printed
    assert CHOSEN_BEFORE not in printed


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(Pool.named("exclusive_a", "4"), id="not its any more"),
        pytest.param(
            replace(EXCLUSIVE, policy=PoolPolicy(reserved=CPUSet.of(2))), id="reserved now"
        ),
    ],
)
def test_a_cpu_that_its_pool_gives_no_more(
    file: Path, capsys: pytest.CaptureFixture[str], now: Pool
) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    node.reconfigure(now, DEFAULT)

    assert explain(file, node.status(web="2"), "web") == 0
    assert (
        "draining: CPUs 2 are the pool's to give no more: the pod keeps them until it ends => 2"
    ) in steps(capsys.readouterr().out)


def test_shared_cpus_of_before_an_edit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(moves_pinned=False)
    node.run("web", container(exclusive_a=1, shared_b=1), exclusive_a="2", shared_b="0")
    node.reconfigure(EXCLUSIVE, Pool.named("shared_b", "6"), DEFAULT)

    assert explain(file, node.status(web="1-2"), "web") == 0
    assert "kept: stale-shared: until it restarts it keeps" in capsys.readouterr().out


def test_a_container_that_has_no_cpu_to_go_to(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(EXCLUSIVE)
    node.run("web", container())
    status = node.status(web="0-7")
    (web,) = status.containers

    nowhere = replace(status, containers=(replace(web, wanted=CPUSet()),))
    assert explain(file, nowhere, "web") == 1
    assert "found: there is no CPU for it, so its cgroup is left" in capsys.readouterr().out


class TestFinding:
    """Which container is meant."""

    @pytest.fixture
    def status(self) -> NodeStatus:
        node = Node()
        node.run("web", container(), container("side"))
        node.run("db", container())
        other = replace(pod("db", container("db")), namespace="prod")
        (found,) = node.status(db="0").containers
        web = tuple(replace(found, name=f"default/web{name}") for name in ("", "/main", "/side"))
        names = ("default/db", "default/lone", f"{other.namespace}/db/db", "4f1c/8ad0")
        return replace(
            node.status(),
            containers=(*web, *(replace(found, name=name) for name in names)),
        )

    @pytest.mark.parametrize(
        ("asked", "meant"),
        [
            ("default/web/side", ["default/web/side"]),
            ("default/web", ["default/web/main", "default/web/side"]),
            ("web", ["default/web/main", "default/web/side"]),
            ("prod/db", ["prod/db/db"]),
            ("lone", ["default/lone"]),
            ("4f1c/8ad0", ["4f1c/8ad0"]),
        ],
    )
    def test_by_name(
        self,
        asked: str,
        meant: list[str],
        status: NodeStatus,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert explain(file, status, asked, "--json") == 0
        containers = json.loads(capsys.readouterr().out)["containers"]
        assert [one["name"] for one in containers] == meant

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ("db", "'db' is the name of several pods; say which: default/db, prod/db"),
            ("wep", "no container or pod 'wep' here; did you mean web? Else look at"),
            ("default/wep", "did you mean default/web or"),
            ("prod/dbb", "did you mean prod/db? Else look"),
            ("default/web/maim", "did you mean default/web/main"),
            ("zzzzzz", "here; look at `cpupool status`"),
            ("", "here; look at `cpupool status`"),
            ("a/b/c/d/e/f", "here; look at `cpupool status`"),
        ],
    )
    def test_a_name_that_is_nobodys_or_several(
        self,
        asked: str,
        said: str,
        status: NodeStatus,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert explain(file, status, asked) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1

    def test_a_sandbox_is_told_for_what_it_is(
        self, status: NodeStatus, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert explain(file, status, "default/lone") == 0
        assert "request: a pod's sandbox, or a container that its pod" in capsys.readouterr().out


def test_an_agent_that_waits_has_looked_at_nobody(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(file, Node().status("the list of pods"), "web") == 2
    assert "the agent waits for the list of pods" in capsys.readouterr().err


def test_a_silent_agent(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container())
    explain(file, node.status(web="0"), "web")
    capsys.readouterr()
    os.utime(file, (0, 0))

    asked = ["explain", "web", "--file", str(file), "--topology", str(file.parent)]
    assert cli.main(asked) == 1
    assert "the agent does not run" in capsys.readouterr().out


def test_json_has_the_same_steps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    assert explain(file, node.status(web="2"), "web") == 0
    printed = steps(capsys.readouterr().out)

    assert explain(file, node.status(web="2"), "web", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "cpupool-explanation/1"
    (web,) = document["containers"]
    assert (web["name"], web["cpus"], web["right"]) == ("default/web/main", "2", True)
    assert [f"{one['rule']}: {one['why']} => {one['left']}" for one in web["steps"]] == printed


def test_the_machine_is_drawn_with_its_cpus(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node()
    node.run("web", container(exclusive_a=1), exclusive_a="2")
    picture = file.with_name("picture.svg")

    assert explain(file, node.status(web="2"), "web", "--svg", str(picture)) == 0
    legend = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["A", "default/web/main", "2"] in legend
    assert ["B", "others", "of", "the", "same", "pools", "4"] in legend
    assert "default/web/main" in picture.read_text()


class TestSimulation:
    """The same from what `cpupool simulate --json` has written."""

    @staticmethod
    def write(file: Path, **changes: object) -> list[str]:
        """Write a simulation of two policies, and give the arguments that name it."""
        step = {"rule": "numaPolicy", "why": "NUMA node 1 of 2", "left": "8-9"}
        chosen = {
            "name": "default/web/main",
            "pool": "exclusive_a",
            "requested": 2,
            "cpus": "8-9",
            "steps": [{"rule": "free", "why": "4 can be chosen", "left": "2-3,8-9"}, step],
            "refused": "",
        }
        late = {**chosen, "name": "default/late/main", "cpus": "", "steps": []}
        late |= {"refused": "Insufficient shared_b", "pool": "shared_b"}
        spread = {**chosen, "cpus": "2,8"}
        document = {
            "schema": "cpupool-simulation/1",
            "policies": {
                "packed": {"containers": [chosen, late]},
                "spread": {"containers": [spread]},
            },
            **changes,
        }
        file.write_text(json.dumps(document))
        os.utime(file, (0, 0))
        return ["--file", str(file)]

    def test_a_container_of_the_first_policy(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["explain", "web", *self.write(file)]) == 0
        assert capsys.readouterr().out == (
            "default/web/main: 8-9\n"
            "  1. request: it requests 2 of exclusive_a => 2-3,8-9\n"
            "  2. free: 4 can be chosen => 2-3,8-9\n"
            "  3. numaPolicy: NUMA node 1 of 2 => 8-9\n"
            "  4. given: these CPUs => 8-9\n"
        )

    def test_another_policy_drawn_on_a_machine(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        drawn = ["--policy", "spread", "--topology", str(file.parent)]
        assert cli.main(["explain", "web", *drawn, *self.write(file)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("default/web/main: 2,8\n")
        assert "8 CPUs online, 4 cores" in printed

    def test_a_container_that_was_refused(
        self, file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["explain", "default/late", *self.write(file)]) == 1
        printed = capsys.readouterr().out
        assert printed.startswith("default/late/main: no CPUs\n")
        assert "request: it requests 2 milli-CPUs of shared_b => none" in printed
        assert "refused: Insufficient shared_b => none" in printed

    @pytest.mark.parametrize(
        ("changes", "options", "said"),
        [
            ({"policies": {"a": {"containers": []}}}, [], "'web' here; simulate it, too"),
            ({}, ["--policy", "odd"], "has no policy 'odd'; it has packed, spread"),
            ({"policies": {}}, [], "has no policy ''; it has none"),
            ({"schema": "cpupool-simulation/2"}, [], "is no simulation of this version"),
            ({"policies": []}, ["--policy", "packed"], "has no policy 'packed'; it has none"),
            ({"policies": {"a": {}}}, [], "is no simulation of this version"),
            ({"policies": {"a": {"containers": [{}]}}}, [], "is no simulation of this version"),
            ({"policies": {"a": {"containers": "x"}}}, [], "is no simulation of this version"),
            ({"policies": None}, [], "is no simulation of this version"),
        ],
    )
    def test_a_document_or_a_policy_that_is_none(
        self,
        changes: dict[str, object],
        options: list[str],
        said: str,
        file: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert cli.main(["explain", "web", *options, *self.write(file, **changes)]) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no status file"),
        (b"[]", "is no status file of this version"),
        (b'{"schema": 3}', "is no status file of this version"),
        (b'{"schema": "cpupool-status/1", "containers": []}', "restart the agent"),
    ],
)
def test_a_file_that_is_none_of_ours(
    content: bytes, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(content)

    assert cli.main(["explain", "web", "--file", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "web", "--file", str(file)]) == 2
    assert "is not there: start `cpupool agent`" in capsys.readouterr().err


def test_a_picture_of_no_machine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulation = TestSimulation.write(file)
    svg = ["--svg", str(file.with_name("picture.svg"))]
    assert cli.main(["explain", "web", *simulation, *svg]) == 2
    assert "--svg draws a machine; name the simulated one" in capsys.readouterr().err


def test_policies_are_a_simulations(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(file, Node().status(), "web", "--policy", "packed") == 2
    assert "--policy is for simulations" in capsys.readouterr().err
