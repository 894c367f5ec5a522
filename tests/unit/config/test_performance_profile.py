from __future__ import annotations

import pytest

from cpupool.config import pool_rules
from cpupool.config.kubelet_settings import KubeletNeeds
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from tests.machines import MACHINES, Machine
from tests.profiles import EXAMPLE, VM, file_of, pools_in, profile_of, refusals, with_lists, written


def test_the_example_of_the_proposal() -> None:
    profile = profile_of(EXAMPLE)

    file = file_of(profile)

    assert file.pools == NodePools.of(
        Pool.named("exclusive_isolated", "4-8"),
        Pool.named("shared_mixed", "2-3"),
        Pool.named("default", "0-1"),
        mixed=MixedCPUs("shared_mixed"),
    )
    assert file.node_selector == {"node-role.kubernetes.io/performance": "test"}
    assert file.warnings == ()
    assert profile.name == "example-performance-profile"
    assert str(profile.reserved_system_cpus) == "0-3"
    assert profile.unread == ("spec.hugepages", "spec.realTimeKernel")


@pytest.mark.parametrize(
    ("reserved", "isolated", "shared", "kept"),
    [
        ("0-2", "5,6", "3,4", "0-4"),
        ("2-3", "4-49,52-99", "0-1,50,51", "0-3,50-51"),
    ],
    ids=["the arithmetic example", "the runtime's list"],
)
def test_the_lists_of_the_proposal(reserved: str, isolated: str, shared: str, kept: str) -> None:
    profile = profile_of(with_lists(reserved, isolated, shared))

    assert pools_in(profile) == NodePools.of(
        Pool.named("exclusive_isolated", isolated),
        Pool.named("shared_mixed", shared),
        Pool.named("default", reserved),
        mixed=MixedCPUs("shared_mixed"),
    )
    assert str(profile.reserved_system_cpus) == kept


@pytest.mark.parametrize(
    ("text", "mixed", "kept", "said"),
    [
        (with_lists("0", "4-7", "2"), MixedCPUs("shared_mixed"), "0,2", ""),
        (with_lists("0", "4-7", "2", mixed=False), None, "0", "spec.cpu.shared: spec.workload"),
        (with_lists("0", "4-7"), None, "0", "mixedCpus: this is true, but spec.cpu.shared lists"),
        (with_lists("0", "4-7", mixed=False), None, "0", ""),
    ],
    ids=["both", "only CPUs", "only the hint", "none"],
)
def test_it_takes_both_switches(text: str, mixed: MixedCPUs | None, kept: str, said: str) -> None:
    profile = profile_of(text)

    assert pools_in(profile).mixed == mixed
    assert str(profile.reserved_system_cpus) == kept
    stays_off = [one for one in refusals(text) if "mixed CPUs stay off" in one]
    assert len(stays_off) == bool(said)
    assert all(said in one for one in stays_off)


@pytest.mark.parametrize(
    ("machine", "isolated", "listed", "idle"),
    [
        (MACHINES["telco_2s_2n_16c32t"], "4-15,20-31", "4-15", "20-31"),
        (VM, "4-7", "4,6", "5,7"),
        (VM, "5-7", "5-6", "7"),
        (Machine(cores=8), "4-7", "4-7", ""),
    ],
    ids=["half the machine apart", "side by side", "half a core", "no SMT"],
)
def test_siblings_are_listed_once(machine: Machine, isolated: str, listed: str, idle: str) -> None:
    topology = machine.topology()
    others = topology.online - topology.with_siblings(CPUSet.parse(isolated))
    text = with_lists(str(others), isolated, mixed=False)

    pools = pools_in(profile_of(text), topology)

    exclusive = pools.by_name("exclusive_isolated")
    assert exclusive
    assert str(exclusive.cpus) == listed
    assert pool_rules.validate(pools, topology) == ()
    said = " ".join(refusals(text, topology))
    assert (f"CPUs {idle} are threads of cores that exclusive_isolated lists once" in said) == bool(
        idle
    )


def test_what_the_machine_refuses_is_said_where_it_stands() -> None:
    text = EXAMPLE.replace("4-8", "3-8").replace("2-3", "2")

    said = refusals(text, VM.topology())

    where = "p.yaml:8:15: spec.cpu.isolated:"
    remedy = "remove them, or use this file for a machine that has them"
    assert f"{where} this machine has no CPUs 8; it has 0-7; {remedy}" in said
    assert f"{where} CPUs 2 in shared_mixed are siblings of its CPUs 3 on the same cores" in said[0]


def test_cpus_in_no_list_are_named() -> None:
    text = EXAMPLE.replace("4-8", "5-7")

    said = refusals(text, Machine(cores=10).topology())

    assert said[0].startswith("p.yaml:6:3: warning: spec.cpu: CPUs 4,8-9 are in none of the lists")


def test_without_a_machine_siblings_are_left_as_they_are() -> None:
    (said,) = refusals(with_lists("0", "4-7", mixed=False))

    assert "warning: spec.cpu.isolated: exclusive_isolated lists all CPUs 4-7, and" in said
    assert "--topology" in said


def test_a_profile_for_every_node() -> None:
    text = written(cpu={"reserved": "0", "isolated": "1"}, net={})

    said = refusals(text, Machine(cores=2).topology())

    assert [one.partition("warning: ")[2].partition(";")[0] for one in said] == [
        "spec.nodeSelector: there is none, so the pool file is for every node",
        "spec: this is not for cpupool: spec.net",
    ]
    assert file_of(profile_of(text)).node_selector == {}


FIVE = {
    "reserved": "0-1",
    "isolated": "4-5",
    "shared": "6",
    "ovsDpdk": "2-3",
    "offlined": "7",
}


@pytest.mark.parametrize(
    ("shared", "mixed", "kept"),
    [("6", True, "0-3,6"), ("6", False, "0-3"), ("", False, "0-3")],
)
def test_the_cpus_of_open_vswitch_are_reserved_and_in_no_pool(
    shared: str, mixed: bool, kept: str
) -> None:
    profile = profile_of(
        written(cpu={**FIVE, "shared": shared}, workloadHints={"mixedCpus": mixed})
    )

    assert str(profile.reserved_system_cpus) == kept
    listed = CPUSet.union(pool.cpus for pool in pools_in(profile))
    assert listed == CPUSet.parse(f"0-1,4-5,{shared}".rstrip(","))
    assert profile.unread == ()


def test_no_two_of_the_five_lists_overlap() -> None:
    names = list(FIVE)
    for at, first in enumerate(names):
        for second in names[at + 1 :]:
            both = {**FIVE, second: f"{FIVE[second]},{FIVE[first]}"}
            (said,) = refusals(written(cpu=both))
            assert f"spec.cpu.{second}: CPUs {FIVE[first]} are also in spec.cpu.{first}" in said


def test_cpus_of_the_other_lists_are_in_a_list() -> None:
    text = written(cpu=FIVE, nodeSelector={"a/b": ""}, workloadHints={"mixedCpus": True})

    assert refusals(text, Machine(cores=8).without("7").topology()) == []
    (off,) = refusals(text, Machine(cores=8).topology())
    assert "spec.cpu.offlined: CPUs 7 are online on this machine, so reservedSystemCPUs" in off


def test_a_core_that_open_vswitch_shares_with_a_pool_is_named() -> None:
    text = written(cpu={**FIVE, "ovsDpdk": "2", "offlined": "7"}, nodeSelector={"a/b": ""})
    found = [one for one in refusals(text, VM.topology()) if "ovsDpdk" in one]
    assert found == []

    text = written(cpu={**FIVE, "isolated": "3-5", "ovsDpdk": "2"}, nodeSelector={"a/b": ""})
    (said,) = (one for one in refusals(text, VM.topology()) if "ovsDpdk" in one)
    assert "spec.cpu.ovsDpdk: CPUs 3 of pools share cores with the CPUs here; list the" in said


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_the_topology_policy_is_read(policy: str) -> None:
    profile = profile_of(
        written(cpu={"reserved": "0", "isolated": "1"}, numa={"topologyPolicy": policy})
    )
    assert profile.topology_policy == policy


def test_an_unknown_topology_policy_is_refused() -> None:
    text = written(cpu={"reserved": "0", "isolated": "1"}, numa={"topologyPolicy": "single"})
    (said,) = refusals(text)
    assert "spec.numa.topologyPolicy: unknown value 'single'" in said


@pytest.mark.parametrize("version", ["v2", "v1", "v1alpha1"])
def test_every_version_is_read(version: str) -> None:
    text = EXAMPLE.replace("io/v2", f"io/{version}")

    assert str(profile_of(text).isolated) == "4-8"


def test_fields_beside_those_that_are_read_are_named() -> None:
    text = written(
        cpu={"reserved": "0", "isolated": "1", "balanceIsolated": True},
        numa={"topologyPolicy": "restricted", "other": 1},
        workloadHints={"realTime": True},
        net={},
    )

    assert set(profile_of(text).unread) == {
        "spec.cpu.balanceIsolated",
        "spec.numa.other",
        "spec.workloadHints.realTime",
        "spec.net",
    }


LABEL = "21:42: spec.nodeSelector.node-role.kubernetes.io/performance: "


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("2-3", "1-3", "9:13: spec.cpu.shared: CPUs 1 are also in spec.cpu.reserved (p.yaml:7:15)"),
        ("2-3", "3-4", "9:13: spec.cpu.shared: CPUs 4 are also in spec.cpu.isolated (p.yaml:8:15)"),
        ("4-8", "0,4", "8:15: spec.cpu.isolated: CPUs 0 are also in spec.cpu.reserved (p.yaml:7:1"),
        ('"0-1"', '""', "7:15: spec.cpu.reserved: there are no CPUs here; list some"),
        ('    isolated: "4-8"\n', "", "6:3: spec.cpu.isolated: there are no CPUs here; list some"),
        ("4-8", "8-4", "8:15: spec.cpu.isolated: '8-4' is not a CPU list: '8-4' ends before it st"),
        (
            '"2-3"',
            "[2, 3]",
            "9:13: spec.cpu.shared: this must be text; write a single value",
        ),
        ("mixedCpus: true", "mixedCpus: 1", "19:16: spec.workloadHints.mixedCpus: '1' is neither"),
        ("mixedCpus: true", "mixedCpus: {}", "19:16: spec.workloadHints.mixedCpus: this must be t"),
        ("\n    mixedCpus: true", " full", "18:18: spec.workloadHints: this must be a map; write"),
        ("mixedCpus: true", "- mixedCpus", "19:5: spec.workloadHints: this must be a map; write"),
        ('"test"', "[a]", f"{LABEL}this must be text; write a single value"),
        ('"test"', '"a b"', f"{LABEL}no node has such a label; write domain/name: value"),
        ("node-role.", "-role.", "21:38: spec.nodeSelector.-role.kubernetes.io/performance: no no"),
        ("io/performance", "io/", "21:31: spec.nodeSelector.node-role.kubernetes.io/: no node has"),
        (
            "name: example",
            "name: ../ex",
            "4:9: metadata.name: '../ex-performance-profile' is no na",
        ),
        ("  shared:", "  isolated:", "9:5: spec.cpu.isolated: this key stands here twice, first"),
        (
            "PerformanceProfile",
            "List",
            "2:7: kind: this is no PerformanceProfile; give a file with",
        ),
        ("kind: P", "name: P", "1:1: kind: this is no PerformanceProfile; give a file with one"),
        ("io/v2", "io/v3", "1:13: apiVersion: no PerformanceProfile of this version is known; use"),
        (EXAMPLE, "- a", "1:1: this must be a map; write key: value on lines of their own"),
        (
            EXAMPLE,
            EXAMPLE + "---\nkind: Namespace\n",
            "22:1: expected a single document in the stream, but found another document; leave one",
        ),
        ("spec:", "spec: *a", "5:7: aliases are not supported; write the value out in full"),
    ],
)
def test_what_is_wrong_is_refused_where_it_stands(was: str, becomes: str, said: str) -> None:
    assert was in EXAMPLE

    first = refusals(EXAMPLE.replace(was, becomes))[0]

    assert first.startswith(f"p.yaml:{said}")


def test_everything_wrong_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = EXAMPLE.replace("0-1", "x").replace("4-8", "").replace("mixedCpus: true", "mixedCpus: 1")

    assert [one.split(":")[1] for one in refusals(text)] == ["7", "8", "19"]


@pytest.mark.parametrize("label", ['""', "", "~"])
def test_a_label_without_a_value(label: str) -> None:
    profile = profile_of(EXAMPLE.replace('"test"', label))

    assert file_of(profile).node_selector == {"node-role.kubernetes.io/performance": ""}


@pytest.mark.parametrize(
    ("word", "mixed"), [("true", True), ("True", True), ("False", False), ("~", False)]
)
def test_the_switch_is_a_truth_value_of_yaml(word: str, mixed: bool) -> None:
    profile = profile_of(EXAMPLE.replace("mixedCpus: true", f"mixedCpus: {word}"))

    assert profile.mixed_cpus is mixed


def test_cpus_may_be_numbers() -> None:
    profile = profile_of(EXAMPLE.replace('"4-8"', "4").replace('"0-1"', "0"))

    assert (str(profile.reserved), str(profile.isolated)) == ("0", "4")


@pytest.mark.parametrize("machine", [None, VM], ids=["unknown", "known"])
def test_beside_the_default_pool_is_what_the_pools_need_of_the_kubelet(
    machine: Machine | None,
) -> None:
    profile = profile_of(with_lists("0-1", "4-7", "2"))
    topology = machine.topology() if machine else None

    beside = profile.beside_default(topology)

    assert str(beside) == ("2-7" if machine else "2,4-7")
    if topology:
        assert beside == KubeletNeeds.of(profile.pools(topology), topology).reserved_cpus


def test_a_profile_without_a_name() -> None:
    assert (
        profile_of(EXAMPLE.replace("  name: example-", "  labels: ")).name == "performance-profile"
    )
