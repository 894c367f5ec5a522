"""A node whose pool file has a CPU manager policy, and what of it doctor compares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cpupool import cli
from cpupool.commands.checks import runtime_checks
from cpupool.core.assignments import Placement
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import CPUManager, Misfit, Scope, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools
from cpupool.manager.report import ContainerStatus, InBubble
from tests.nodes import KUBELET, POOL_FILE, POOLS, WrittenNode
from tests.unit.commands.doctor.rows import NOBODY, verdicts

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.local.kubelet import EmbeddedKubelet

STATIC = CPUManager("static", 1)
POOL_FILE_PATH = "etc/cpu-pooler/poolconfig-a.yaml"
MANAGER = "cpuManager: {policy: static, reserved: 1}\n"


@pytest.fixture
def node(folder: Path) -> WrittenNode:
    """Make a node with the policy `static` in its pool file, and in force."""
    made = WrittenNode(folder)
    made.put(POOL_FILE_PATH, POOL_FILE + MANAGER)
    made.status(pools=replace(POOLS, cpu_manager=STATIC))
    reserve(made, "29")
    return made


def reserve(node: WrittenNode, cpu: str) -> None:
    node.put("var/lib/kubelet/config.yaml", KUBELET.replace("28500m", cpu))


@pytest.mark.usefixtures("kubelet")
def test_a_damaged_state_from_which_the_kubelet_does_not_start_is_reported(
    examine: Any, node: WrittenNode
) -> None:
    node.put("var/lib/kubelet/cpu_manager_state", '{"policyName":"none","checksum":')

    damaged, placing = examine()[1]["CPU manager"]

    assert damaged["verdict"] == "problem"
    assert damaged["fact"] == (
        "the kubelet's cpu_manager_state is damaged: the next start of the kubelet fails"
    )
    assert "delete cpu_manager_state in its folder" in damaged["remedy"]
    assert placing["verdict"] == "ok"


@pytest.mark.usefixtures("kubelet")
def test_a_node_whose_kubelet_leaves_the_policy_its_cpus(examine: Any) -> None:
    rows = examine()[1]

    assert verdicts(rows)["pool file"] == verdicts(rows)["CPU manager"] == ["ok"]
    assert verdicts(rows)["pools"] == verdicts(rows)["isolation"] == ["ok"]
    (row,) = rows["kubelet"]
    assert (row["verdict"], row["fact"]) == (
        "ok",
        (
            "3 cpu for the scheduler, in a default pool of 4 CPUs; the CPU manager gives out 3"
            " and reserves 0"
        ),
    )


@pytest.mark.parametrize(
    ("cpu", "verdict", "fact"),
    [
        ("28", "problem", "the scheduler gives 1 cpu away that the CPU manager cannot give"),
        ("31", "warning", "2 cpu that the CPU manager can give stays unused"),
    ],
)
def test_a_kubelet_that_reserves_another_amount_is_reported(
    examine: Any, node: WrittenNode, *, cpu: str, verdict: str, fact: str
) -> None:
    reserve(node, cpu)

    (row,) = examine()[1]["kubelet"]

    assert row["verdict"] == verdict
    assert fact in row["fact"]
    assert row["remedy"] == "set systemReserved.cpu to 29"


@pytest.mark.usefixtures("kubelet")
def test_a_policy_needs_no_pools(examine: Any, node: WrittenNode) -> None:
    node.put(POOL_FILE_PATH, MANAGER)
    node.status(pools=NodePools(cpu_manager=STATIC))
    reserve(node, "1")

    rows = examine()[1]

    assert verdicts(rows)["pool file"] == verdicts(rows)["kubelet"] == ["ok"]
    assert "31 cpu for the scheduler" in rows["kubelet"][0]["fact"]


def test_an_edit_that_is_not_in_force_is_reported(examine: Any, node: WrittenNode) -> None:
    node.put(POOL_FILE_PATH, POOL_FILE + MANAGER.replace("1", "2"))
    (row,) = examine()[1]["pool file"]
    assert row["verdict"] == "warning"
    assert "something else than the pools that the agent has in force" in row["fact"]


def test_a_static_kubelet_beside_the_policy_is_reported(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    kubelet.static_cpus = CPUSet.parse("2-31")
    node.put(
        "var/lib/kubelet/cpu_manager_state",
        '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
    )

    stale, both = examine()[1]["CPU manager"]

    assert stale["fact"].endswith("is of 'static': the next start of the kubelet fails")
    assert both["verdict"] == "problem"
    assert both["fact"] == (
        "the kubelet's CPU manager is static: it gives out the CPUs 2-31 itself, and so does the"
        " policy static of cpuManager"
    )
    assert "set cpuManagerPolicy: none" in both["remedy"]

    node.status(pools=replace(POOLS, cpu_manager=CPUManager("koordinator", 1)))
    classes = examine()[1]["CPU manager"][1]
    assert classes["fact"].endswith("and so does the policy koordinator of cpuManager")
    assert "the label koordinator.sh/qosClass: LSR; then drain the node" in classes["remedy"]

    kubelet.static_cpus = CPUSet()
    (stale,) = examine()[1]["CPU manager"]
    assert "delete cpu_manager_state in its folder" in stale["remedy"]


def test_a_static_kubelet_beside_koordinators_classes_is_a_warning_if_it_keeps_the_reserved_cpus(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    koordinator = CPUManager("koordinator", CPUSet.parse("0,16"))
    node.status(pools=NodePools(cpu_manager=koordinator))
    node.put("var/lib/kubelet/config.yaml", KUBELET.replace("none", "static"))
    (node.root.kubelet / "cpu_manager_state").unlink()
    kubelet.static_cpus = CPUSet.parse("1-15,17-31")

    (row,) = examine()[1]["CPU manager"]
    assert row["verdict"] == "warning"
    assert "cpupool places the other containers" in row["fact"]
    assert "set cpuManagerPolicy: none" in row["remedy"]

    kubelet.static_cpus = CPUSet.parse("1-31")
    (row,) = examine()[1]["CPU manager"]
    assert row["verdict"] == "problem"
    assert row["fact"].endswith("gives out CPUs 16 that cpuManager reserves")

    node.status(pools=replace(POOLS, cpu_manager=koordinator))
    (row,) = examine()[1]["CPU manager"]
    assert row["verdict"] == "problem"
    assert row["fact"].endswith("itself, and so does the policy koordinator of cpuManager")


def test_isolated_cpus_that_the_policy_gives_out_are_reported(
    examine: Any, node: WrittenNode
) -> None:
    node.put("sys/devices/system/cpu/isolated", "1-2,4-7")

    shared, default = examine()[1]["isolation"]

    assert shared["fact"].startswith("CPUs 2 of shared pools are in isolcpus: ")
    assert default["verdict"] == "warning"
    assert default["fact"].startswith(
        "CPUs 1 of the default pool, which the policy static of cpuManager gives out, are in"
        " isolcpus: "
    )
    assert default["remedy"] == "take them out of isolcpus, or put them into an exclusive pool"


def test_what_only_the_policy_knows_is_reported_for_file_and_pools(
    examine: Any, node: WrittenNode
) -> None:
    torn = POOL_FILE.replace("0-1,16-17", "0-1,16")
    whole = MANAGER.replace("1}", "1, options: {full-pcpus-only: true}}")
    node.put(POOL_FILE_PATH, torn + whole)

    (row,) = examine()[1]["pool file"]
    assert row["verdict"] == "problem"
    assert "poolconfig-a.yaml:5:" in row["fact"]
    assert "the default pool lacks CPUs 17" in row["fact"]

    options = StaticOptions(full_pcpus_only=True)
    default, *others = POOLS.pools
    node.status(
        pools=NodePools.of(
            *others,
            replace(default, cpus=CPUSet.parse("0-1,16")),
            cpu_manager=replace(STATIC, options=options),
        )
    )
    assert "the default pool lacks CPUs 17" in examine()[1]["pools"][0]["fact"]


def test_a_bundle_has_what_is_compared(
    node: WrittenNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reserve(node, "28")
    node.put(
        "var/lib/kubelet/cpu_manager_state",
        '{"policyName":"static","defaultCpuSet":"0-7","checksum":0}',
    )
    bundle = tmp_path / "bundle.tar.gz"
    named = ["--host-root", str(node.folder), "--config", str(node.pool_files), "--agent", NOBODY]
    assert cli.main(["support-bundle", "--output", str(bundle), *named]) == 0

    assert cli.main(["doctor", "--json", "--bundle", str(bundle)]) == 1

    told = capsys.readouterr().out
    assert "the scheduler gives 1 cpu away that the CPU manager cannot give" in told
    assert "is of 'static': the next start of the kubelet fails" in told


CONTAINERD = '[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = {}\n'
CRIO = "[crio.nri.default_validator]\nnri_enable_default_validator = {}\n"


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        pytest.param({}, "unseen", id="no configuration"),
        pytest.param({"containerd/config.toml": CONTAINERD.format("true")}, "ok", id="containerd"),
        pytest.param({"containerd/config.toml": CONTAINERD.format("false")}, "warning", id="off"),
        pytest.param({"containerd/config.toml": "plugins = 3\n"}, "warning", id="no table"),
        pytest.param({"containerd/config.toml": "= broken"}, "unseen", id="no TOML"),
        pytest.param(
            {"crio/crio.conf": "", "crio/crio.conf.d/10-nri.conf": CRIO.format("true")},
            "ok",
            id="CRI-O",
        ),
    ],
)
def test_a_runtime_that_does_not_wait_for_the_agent_is_a_warning(
    node: WrittenNode, examine: Any, files: dict[str, str], verdict: str
) -> None:
    for name, content in files.items():
        node.put(f"etc/{name}", content)
    (row,) = examine()[1]["agent away"]
    assert row["verdict"] == verdict
    assert ("--require-agent guaranteed" in row["remedy"]) == (verdict == "warning")


@pytest.mark.parametrize(
    ("misfit", "writer", "verdict"),
    [
        (Misfit.HOLD, Writer.NRI, "ok"),
        (Misfit.HOLD, Writer.CGROUP, "warning"),
        (Misfit.FAIL, Writer.CRI, "warning"),
        (Misfit.SHARE, Writer.CGROUP, "ok"),
    ],
)
def test_without_nri_no_pod_can_be_held(
    node: WrittenNode, examine: Any, misfit: Misfit, writer: Writer, verdict: str
) -> None:
    pools = replace(POOLS, cpu_manager=replace(STATIC, on_misfit=misfit))
    node.status(pools=pools, enforcement=writer)
    (row,) = examine()[1]["misfits"]
    assert row["verdict"] == verdict
    assert ("onMisfit: share" in row["remedy"]) == (verdict == "warning")


DYNAMIC = replace(POOLS, cpu_manager=CPUManager("dynamic", 1))
GATED = f"{KUBELET}featureGates: {{InPlacePodVerticalScaling: %s}}\n"


def test_what_keeps_resizes_from_changing_cpus_is_a_warning_each(
    node: WrittenNode, examine: Any
) -> None:
    assert "resizes" not in examine()[1]

    node.status(pools=DYNAMIC, enforcement=Writer.CGROUP)
    node.put("var/lib/kubelet/config.yaml", GATED % "false")
    nri, gate, version = examine()[1]["resizes"]
    assert (nri["verdict"], gate["verdict"], version["verdict"]) == ("warning", "warning", "unseen")
    assert "containers keep the CPUs with which they began" in nri["fact"]
    assert nri["remedy"] == "connect NRI (row container runtime)"
    assert gate["remedy"] == "remove featureGates.InPlacePodVerticalScaling"
    assert "--kubeconfig" in version["remedy"]


@pytest.mark.parametrize(
    ("gates", "version", "verdict"),
    [
        ({}, "v1.32.11-eks", "warning"),
        ({"InPlacePodVerticalScaling": True}, "v1.32.11", "ok"),
        ({}, "v1.33.0", "ok"),
        ({}, "2.0.0+k3s", "ok"),
    ],
)
def test_an_old_kubelet_resizes_no_pod(gates: dict[str, bool], version: str, verdict: str) -> None:
    (row,) = runtime_checks.resizes("dynamic", Writer.NRI, gates, version)
    assert row.verdict.value == verdict
    assert ("upgrade it" in row.remedy) == (verdict == "warning")


def test_a_static_kubelet_beside_dynamic_is_reported(
    examine: Any, node: WrittenNode, kubelet: EmbeddedKubelet
) -> None:
    kubelet.static_cpus = CPUSet.parse("2-31")
    node.status(pools=DYNAMIC)

    (row,) = examine()[1]["CPU manager"]

    assert row["verdict"] == "problem"
    assert row["fact"].endswith("and so does the policy dynamic of cpuManager")
    assert "set cpuManagerPolicy: none" in row["remedy"]


POD_LEVEL = replace(STATIC, pod_level=True, topology_scope=Scope.POD)


def test_bubbles_are_named_and_a_kubelet_without_resources_of_pods_is_a_warning(
    node: WrittenNode, examine: Any
) -> None:
    def row(manager: CPUManager, *containers: ContainerStatus) -> tuple[str, str]:
        node.status(*containers, pools=replace(POOLS, cpu_manager=manager))
        (found,) = examine()[1]["bubbles"]
        return found["verdict"], found["fact"]

    assert "bubbles" not in examine()[1]
    assert row(POD_LEVEL) == ("ok", "no pod with resources of its own runs")
    bubble = CPUSet.parse("2-5")
    assert row(
        POD_LEVEL,
        _in_bubble("ns/web/db", "2-3", InBubble(bubble, owns=True)),
        _in_bubble("ns/web/logs", "4-5", InBubble(bubble, owns=False)),
        _in_bubble("ns/web/proxy", "4-5", InBubble(bubble, owns=False)),
        _in_bubble("ns/one/a", "6", InBubble(CPUSet.of(6), owns=False)),
    ) == (
        "ok",
        (
            "pod ns/web has the bubble 2-5: db owns 2-3, logs and proxy share 4-5;"
            " pod ns/one has the bubble 6: a shares 6"
        ),
    )
    verdict, fact = row(replace(POD_LEVEL, topology_scope=Scope.CONTAINER))
    assert verdict == "ok"
    assert fact.endswith("topologyScope: pod gives each such pod a bubble")
    node.put("var/lib/kubelet/config.yaml", f"{KUBELET}featureGates: {{PodLevelResources: false}}")
    assert row(POD_LEVEL)[0] == "warning"


def _in_bubble(name: str, cpus: str, bubble: InBubble) -> ContainerStatus:
    own = CPUSet.parse(cpus)
    return ContainerStatus(name, Placement.POLICY, own, cpus, "", own, bubble=bubble)
