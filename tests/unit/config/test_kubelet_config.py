from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cpupool.config import kubelet_config
from cpupool.config.kubelet_settings import KubeletConfig, KubeletNeeds
from cpupool.core.cpu_manager import CPUManager, Scope, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, QuantityError, Severity
from cpupool.core.node_topology import TopologyManager
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"].topology()
POOLS = NodePools.of(
    Pool.named("default", "0-1,16-17"),
    Pool.named("shared_x", "2-3,18-19"),
    Pool.named("exclusive_near", "4-6"),
    Pool.named("exclusive_both", "7-9"),
)
NEEDS = KubeletNeeds.of(POOLS, TELCO, usual_milli=500)


def found(**settings: object) -> list[tuple[str, Severity]]:
    """Check a configuration that is right but for some settings."""
    right = {"system_reserved_milli": 28500, "topology_manager_policy": "best-effort"}
    config = KubeletConfig(**{**right, **settings})  # type: ignore[arg-type]
    return [(one.path, one.severity) for one in kubelet_config.check(config, NEEDS)]


@pytest.mark.parametrize(
    "word", [{"topology_manager_policy": "strict"}, {"topology_manager_scope": "node"}]
)
def test_words_with_which_the_kubelet_does_not_start_are_no_topology_manager(
    word: dict[str, str],
) -> None:
    assert KubeletConfig(**word).topology_manager is None  # type: ignore[arg-type]
    right = KubeletConfig(topology_manager_policy="restricted", topology_manager_scope="pod")
    assert right.topology_manager == TopologyManager(TopologyPolicy.RESTRICTED, Scope.POD)


def test_what_the_pools_need_is_all_but_the_default_pool_and_the_usual() -> None:
    assert (NEEDS.reserved_milli, NEEDS.schedulable_milli) == (28500, 3500)
    assert NEEDS.reserved_cpus == CPUSet.parse("0,2-15,18-31")
    assert NEEDS.spanning == {"exclusive_both": (0, 1)}
    assert NEEDS.topology_manager_policy == "best-effort"


def test_offline_cpus_are_without_an_owner() -> None:
    offline = MACHINES["telco_2s_2n_16c32t"].without("1,5").topology()

    needs = KubeletNeeds.of(POOLS, offline)

    assert (needs.reserved_milli, needs.schedulable_milli) == (27000, 3000)


def test_without_a_default_pool_it_is_what_no_pool_lists() -> None:
    needs = KubeletNeeds.of(NodePools.of(Pool.named("exclusive_a", "0-7")), TELCO)

    # 16-23 are the siblings of 0-7.
    assert needs.default == CPUSet.parse("8-15,24-31")
    assert needs.reserved_milli == 16000


def test_a_machine_with_many_numa_nodes_is_left_without_a_policy() -> None:
    machine = MACHINES["epyc_256"].topology()
    needs = KubeletNeeds.of(NodePools.of(Pool.named("exclusive_a", "0-127")), machine)
    assert needs.topology_manager_policy == "best-effort"

    more = replace(needs, node_count=9)

    assert more.topology_manager_policy == "none"


@pytest.mark.parametrize(("text", "milli"), [("2", 2000), ("1.5", 1500), ("500m", 500), ("1u", 1)])
def test_amounts_are_read_as_kubernetes_reads_them(text: str, milli: int) -> None:
    assert kubelet_config.milli_of(text) == milli


@pytest.mark.parametrize("text", ["-1", "", "x", "1e30"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        kubelet_config.milli_of(text)


def test_a_configuration_that_suits_the_pools_is_without_problems() -> None:
    assert found() == []
    assert found(system_reserved_milli=28000, kube_reserved_milli=500) == []
    assert found(system_reserved_milli=0, reserved_cpus=NEEDS.reserved_cpus) == []
    # A kubelet that runs may show the number of its list as systemReserved.
    assert found(system_reserved_milli=29000, reserved_cpus=NEEDS.reserved_cpus) == []
    assert found(topology_manager_policy="single-numa-node") == []


STATIC = KubeletNeeds.of(
    NodePools.of(Pool.named("shared_mixed", "2-3,18-19"), mixed=MixedCPUs("shared_mixed")), TELCO
)
"""The kubelet gives out all but the shared CPUs."""


def test_a_static_cpu_manager_suits_mixed_cpus_beside_shared_pools_alone() -> None:
    assert (STATIC.static, NEEDS.static) == (True, False)
    assert STATIC.reserved_cpus == CPUSet.parse("2-3,18-19")
    for listed in ("2-3,18-19", "0-3,18-19"):
        config = KubeletConfig("static", reserved_cpus=CPUSet.parse(listed))
        assert [one.severity for one in kubelet_config.check(config, STATIC)] == []


def test_a_static_cpu_manager_must_keep_shared_cpus_to_itself() -> None:
    config = KubeletConfig("static", reserved_cpus=CPUSet.parse("0-1,18-19"))
    (problem,) = kubelet_config.check(config, STATIC)
    assert str(problem) == (
        "reservedSystemCPUs: the kubelet gives CPUs 2-3 of shared pools to containers as their own;"
        " set reservedSystemCPUs to 0-3,18-19"
    )


def test_a_static_cpu_manager_suits_koordinators_classes_without_pools_to_give_out() -> None:
    policy = CPUManager("koordinator", CPUSet.parse("0,16"))
    alone = NodePools.of(cpu_manager=policy)
    beside = KubeletNeeds.of(alone, TELCO, assignable=TELCO.online - CPUSet.parse("0,16"))
    right, wrong = (
        kubelet_config.check(KubeletConfig("static", reserved_cpus=CPUSet.parse(listed)), beside)
        for listed in ("0,16", "1,17")
    )
    assert right == ()
    assert str(wrong[0]) == (
        "reservedSystemCPUs: the kubelet gives CPUs 0,16 that no container may own to containers as"
        " their own; set reservedSystemCPUs to 0-1,16-17"
    )

    for name in ("exclusive_a", "shared_a"):
        pools = NodePools.of(Pool.named(name, "8-15"), cpu_manager=policy)
        assert not KubeletNeeds.of(pools, TELCO).static


CHOOSING = KubeletNeeds.of(
    NodePools.of(
        Pool.named("default", "0-7,16-23"),
        Pool.named("exclusive_near", "8-15"),
        cpu_manager=CPUManager("static", CPUSet.of(0, 16)),
    ),
    TELCO,
    assignable=CPUSet.parse("1-7,17-23"),
)
"""The CPU manager policy gives 14 of the 16 CPUs of the default pool."""


def test_the_scheduler_gets_the_cpus_that_the_cpu_manager_policy_can_give() -> None:
    assert (CHOOSING.reserved_milli, CHOOSING.schedulable_milli) == (18000, 14000)
    assert CHOOSING.reserved_cpus == CPUSet.parse("0,8-16,24-31")
    assert KubeletConfig(system_reserved_milli=18000).describe(CHOOSING) == (
        "14 cpu for the scheduler, in a default pool of 16 CPUs; the CPU manager gives out 14 and"
        " reserves 0,16"
    )
    assert KubeletConfig(system_reserved_milli=28500).describe(NEEDS) == (
        "3500m cpu for the scheduler, in a default pool of 4 CPUs"
    )


def reserves(cpus: str) -> str:
    pool = "16 of 32 CPUs are outside the default pool (0-7,16-23; the CPU manager reserves 0,16)"
    return f"the kubelet reserves {cpus} cpu, and {pool}"


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        pytest.param({"system_reserved_milli": 18000}, [], id="right"),
        pytest.param(
            {"system_reserved_milli": 12000, "kube_reserved_milli": 6000}, [], id="right in two"
        ),
        pytest.param({"reserved_cpus": CPUSet.parse("0-17")}, [], id="right as a list"),
        pytest.param(
            {"system_reserved_milli": 12000, "kube_reserved_milli": 3500},
            [
                (
                    f"systemReserved.cpu: {reserves('15500m')}: the scheduler gives 2500m cpu away"
                    " that the CPU manager cannot give; set systemReserved.cpu to 14500m"
                )
            ],
            id="too much allocatable",
        ),
        pytest.param(
            {"system_reserved_milli": 20000},
            [
                (
                    f"warning: systemReserved.cpu: {reserves('20')}: 2 cpu that the CPU manager can"
                    " give stays unused; set systemReserved.cpu to 18"
                )
            ],
            id="too little allocatable",
        ),
        pytest.param(
            {"kube_reserved_milli": 20000},
            [
                (
                    f"warning: systemReserved.cpu: {reserves('20')}: 2 cpu that the CPU manager can"
                    " give stays unused; set kubeReserved.cpu and systemReserved.cpu to 18 together"
                )
            ],
            id="too little allocatable by kubeReserved alone",
        ),
        pytest.param(
            {"reserved_cpus": CPUSet.parse("0-20")},
            [
                (
                    f"warning: reservedSystemCPUs: {reserves('21')}: 3 cpu that the CPU manager can"
                    " give stays unused; set reservedSystemCPUs to 0,8-16,24-31"
                )
            ],
            id="too long a list",
        ),
        pytest.param(
            {"system_reserved_milli": 18000, "cpu_manager_policy": "static"},
            [
                (
                    "cpuManagerPolicy: the kubelet's CPU manager is 'static' and gives out the same"
                    " CPUs as cpupool; drain the node, stop the kubelet, set none, delete its"
                    " cpu_manager_state, start it"
                )
            ],
            id="a second CPU manager",
        ),
    ],
)
def test_allocatable_cpu_equals_the_assignable_cpus(
    settings: dict[str, object], problems: list[str]
) -> None:
    config = KubeletConfig(**settings)  # type: ignore[arg-type]
    assert [str(one) for one in kubelet_config.check(config, CHOOSING)] == problems


ERROR, WARNING = Severity.ERROR, Severity.WARNING


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"cpu_manager_policy": "static"}, [("cpuManagerPolicy", ERROR)]),
        ({"system_reserved_milli": 28499}, [("systemReserved.cpu", ERROR)]),
        ({"system_reserved_milli": 32000}, [("systemReserved.cpu", WARNING)]),
        ({"system_reserved_milli": 32001}, [("systemReserved.cpu", ERROR)]),
        (
            {"reserved_cpus": CPUSet.parse("0-1")},
            [("reservedSystemCPUs", WARNING), ("reservedSystemCPUs", ERROR)],
        ),
        (
            {"system_reserved_milli": 0, "reserved_cpus": CPUSet.parse("0-27,99")},
            [("reservedSystemCPUs", ERROR)],
        ),
        ({"topology_manager_policy": "none"}, [("topologyManagerPolicy", WARNING)]),
    ],
)
def test_what_does_not_suit_the_pools_is_reported(
    settings: dict[str, object], problems: list[tuple[str, Severity]]
) -> None:
    assert found(**settings) == problems


def test_a_kubelet_of_the_policy_none_has_no_options() -> None:
    text = "kind: KubeletConfiguration\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n"
    config = kubelet_config.parse("kubelet.yaml", text)
    (problem,) = (
        found
        for found in kubelet_config.check(config, KubeletNeeds.of(POOLS, TELCO))
        if found.path == "cpuManagerPolicyOptions"
    )
    assert str(problem) == (
        "kubelet.yaml:2:1: cpuManagerPolicyOptions: with cpuManagerPolicy: none the kubelet does"
        " not start, as full-pcpus-only is set; remove cpuManagerPolicyOptions; the pool file has"
        " these options in cpuManager"
    )
    assert kubelet_config.parse("a", json.dumps(config.excerpt())).cpu_manager_options == {
        "full-pcpus-only": "true"
    }


def test_the_remedy_holds_the_amount_that_is_right() -> None:
    config = KubeletConfig(system_reserved_milli=1000, kube_reserved_milli=2000)

    problem = kubelet_config.check(config, NEEDS)[0]

    assert problem.remedy == "set systemReserved.cpu to 26500m"
    assert found(system_reserved_milli=26500, kube_reserved_milli=2000) == []
    assert "28 of 32 CPUs are outside the default pool (0-1,16-17)" in problem.what


@pytest.mark.parametrize(
    "text",
    [
        """
kind: KubeletConfiguration
cpuManagerPolicy: static
systemReserved: {cpu: 500m}
kubeReserved: {cpu: 2, memory: 1Gi}
reservedSystemCPUs: 0-1
unknown: [1, 2]
""",
        json.dumps(
            {
                "kubeletconfig": {
                    "cpuManagerPolicy": "static",
                    "enforceNodeAllocatable": ["pods"],
                    "systemReserved": {"cpu": "500m"},
                    "kubeReserved": {"cpu": "2"},
                    "reservedSystemCPUs": "0-1",
                    "padding": "x" * 5000,
                }
            }
        ),
    ],
)
def test_a_file_and_an_answer_of_configz_are_read_alike(text: str) -> None:
    config = kubelet_config.parse("kubelet", text)

    assert config.cpu_manager_policy == "static"
    assert (config.system_reserved_milli, config.kube_reserved_milli) == (500, 2000)
    assert (config.reserved_cpus, config.reserved_milli) == (CPUSet.parse("0-1"), 2000)
    assert config.locations["cpuManagerPolicy"].file == "kubelet"


def test_an_excerpt_holds_what_is_known_and_nothing_else() -> None:
    text = (
        "{kind: KubeletConfiguration, staticPodURLHeader: {a: [secret]}, systemReserved: {cpu: 2},"
        " topologyManagerPolicy: restricted, reservedSystemCPUs: '1'}"
    )
    config = kubelet_config.parse("a", text)

    excerpt = json.dumps(config.excerpt())

    assert "secret" not in excerpt
    again = kubelet_config.parse("a", excerpt)
    assert kubelet_config.check(again, NEEDS) != ()
    assert again.excerpt() == config.excerpt()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "neither a KubeletConfiguration nor an answer of /configz"),
        ("[]", "this must be a map"),
        ("", "neither"),
        ("kubeletconfig: 3", "neither"),
        ("a: &a 1\nb: *a", "aliases are not supported"),
        ("kind: KubeletConfiguration\nsystemReserved: 3", "2:17: systemReserved: this must be a"),
        ("kind: KubeletConfiguration\nsystemReserved: {cpu: x}", "'x' is not a quantity"),
        ("kind: KubeletConfiguration\nreservedSystemCPUs: a", "'a' is not a CPU list"),
        ("kind: KubeletConfiguration\ncpuManagerPolicy: [a]", "this must be text"),
        ("kind: KubeletConfiguration\nkind: KubeletConfiguration", "twice"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kubelet_config.parse("kubelet.yaml", text)

    assert said in str(caught.value)
    assert str(caught.value).startswith("kubelet.yaml:")
