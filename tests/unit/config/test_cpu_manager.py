"""`cpuManager` in a pool file: what it can say, and which CPUs it can reserve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.config import cpu_manager, pool_rules, poolconfig
from cpupool.core import default_pool
from cpupool.core.cpu_manager import (
    TRUTH_VALUES,
    CPUManager,
    Misfit,
    StaticOptions,
    Suppression,
    TopologyPolicy,
)
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Severity
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.policies.base import Choice, ChoiceRequest, CPUManagerPolicy
from tests.machines import MACHINES
from tests.unit.config.poolconfig.files import parse, refused

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.policies.view import NodeView

MACHINE = MACHINES["telco_2s_2n_16c32t"]
TELCO = MACHINE.topology()
"""CPUs 0-31; the sibling of each CPU n below 16 is n + 16."""
RESERVED_FORM = "write how many CPUs, as 2, or a CPU list, as 0-1,32-33; 2-2 is CPU 2 alone"
SETTINGS = (
    "reserved: 2",
    "options: {align-by-socket: 1}",
    "topologyPolicy: none",
    "onMisfit: hold",
)


class Toy(CPUManagerPolicy):
    """A policy that is not built in."""

    def requests(self, pod: Pod) -> dict[str, int]:
        return {}

    def choose(self, view: NodeView, request: ChoiceRequest) -> Choice:
        return Choice(request.has)


def manager_of(settings: str) -> CPUManager:
    return parse(f"cpuManager: {{policy: static, {settings}}}").pools.cpu_manager


def refused_settings(settings: str) -> list[str]:
    """Return the problems of a file with these settings, each on its own line from line 3."""
    return refused("cpuManager:\n  policy: static\n" + settings)


def test_a_file_says_how_containers_get_the_default_pools_cpus() -> None:
    file = parse("""\
        pools:
          exclusive_dpdk: {cpus: "16-31"}
          default: {cpus: "0-15,32-47"}
        cpuManager:
          policy: static
          reserved: "0-1,32-33"
          options:
            full-pcpus-only: "true"
            align-by-socket: false
          topologyPolicy: restricted
          onMisfit: share
        """)
    assert file.warnings == ()
    assert file.pools.cpu_manager == CPUManager(
        "static",
        CPUSet.parse("0-1,32-33"),
        StaticOptions(full_pcpus_only=True),
        TopologyPolicy.RESTRICTED,
        Misfit.SHARE,
    )


def test_only_the_policy_and_the_reserved_cpus_must_be_written() -> None:
    assert manager_of("reserved: 2") == CPUManager("static", 2)
    assert manager_of("reserved: 2, options: , topologyPolicy: , onMisfit: ") == CPUManager(
        "static", 2
    )


@pytest.mark.parametrize("pools", ["", "pools:\n", "pools: {}\n"])
def test_a_file_with_a_policy_needs_no_pools(pools: str) -> None:
    file = parse(f"{pools}cpuManager: {{policy: static, reserved: 1}}\n")
    assert default_pool.declared(file.pools, TELCO) == TELCO.online
    assert file.problems(TELCO) == ()


def test_a_file_that_names_the_policy_none_needs_no_pools_either() -> None:
    file = parse("cpuManager: {policy: none}\n")
    assert file.pools.places
    assert default_pool.declared(file.pools, TELCO) == TELCO.online
    assert file.problems(TELCO) == ()


@pytest.mark.parametrize("written", ["cpuManager:", "cpuManager: {}"])
def test_a_file_without_a_policy_and_without_pools_is_refused(written: str) -> None:
    (problem,) = refused(f"{written}\n")
    assert problem == "a.yaml:1:1: pools: there is no pool; give each pool a name and its cpus"


@pytest.mark.parametrize(
    ("written", "reserved"),
    [
        ("2", 2),
        ("'2'", 2),
        ("' 2 '", 2),
        ("2-2", CPUSet.of(2)),
        ("0,2", CPUSet.of(0, 2)),
        ("0-1,16-17", CPUSet.parse("0-1,16-17")),
        ("0-31:16", CPUSet.of(0, 16)),
    ],
)
def test_a_number_is_how_many_cpus_and_everything_else_is_a_list(
    written: str, reserved: CPUSet | int
) -> None:
    assert parse(f"cpuManager:\n  policy: static\n  reserved: {written}").pools.cpu_manager == (
        CPUManager("static", reserved)
    )


@pytest.mark.parametrize("truth", TRUTH_VALUES)
def test_options_have_the_truth_values_of_the_kubelet(truth: str) -> None:
    options = manager_of(f"reserved: 1, options: {{strict-cpu-reservation: {truth}}}").options
    assert options.strict_cpu_reservation is TRUTH_VALUES[truth]


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        pytest.param(
            "  reservd: 2\n",
            ["a.yaml:3:3: cpuManager.reservd: unknown key; did you mean reserved?"],
            id="a misspelt reservation",
        ),
        pytest.param(
            "",
            [
                "a.yaml:1:1: cpuManager.reserved: the policy static needs a reserved CPU, so that"
                " the containers without CPUs of their own always have one; " + RESERVED_FORM
            ],
            id="nothing reserved",
        ),
        *(
            pytest.param(
                f"  reserved: {written}\n",
                [
                    (
                        f"a.yaml:3:13: cpuManager.reserved: {shown!r} is not a number of"
                        f" CPUs from 1 to 999999999; {RESERVED_FORM}"
                    )
                ],
                id=f"reserved {written}",
            )
            for written, shown in (("010", "010"), ("' '", ""), ("1" * 10, "1" * 10))
        ),
        pytest.param(
            "  reserved: [0, 1]\n",
            ["a.yaml:3:13: cpuManager.reserved: this must be text; write a single value"],
            id="a YAML list of CPUs",
        ),
        pytest.param(
            "  reserved: 1\n  options: full-pcpus-only\n",
            [
                (
                    "a.yaml:4:12: cpuManager.options: this must be a map; write key: value"
                    " on lines of their own"
                )
            ],
            id="options that are no map",
        ),
        pytest.param(
            "  reserved: 1\n  options:\n    full-pcpu-only: true\n    align-by-socket: on\n"
            "    strict-cpu-reservation:\n    distribute-cpus-across-numa: [true]\n",
            [
                (
                    "a.yaml:5:5: cpuManager.options.full-pcpu-only: unknown key; did you mean"
                    " full-pcpus-only?"
                ),
                (
                    "a.yaml:6:22: cpuManager.options.align-by-socket: 'on' is not a truth"
                    " value; write true or false"
                ),
                (
                    "a.yaml:7:28: cpuManager.options.strict-cpu-reservation: '' is not a"
                    " truth value; write true or false"
                ),
                (
                    "a.yaml:8:34: cpuManager.options.distribute-cpus-across-numa: this"
                    " must be text; write a single value"
                ),
            ],
            id="options that the kubelet does not have, or not so",
        ),
        pytest.param(
            "  reserved: 1\n  topologyPolicy: single-numa\n  onMisfit: wait\n  onMistfit: hold\n",
            [
                (
                    "a.yaml:4:19: cpuManager.topologyPolicy: unknown value 'single-numa';"
                    " did you mean single-numa-node?"
                ),
                "a.yaml:5:13: cpuManager.onMisfit: unknown value 'wait'; use hold or share or fail",
                "a.yaml:6:3: cpuManager.onMistfit: unknown key; did you mean onMisfit?",
            ],
            id="unknown words",
        ),
        pytest.param(
            "  reserved: 1\n  topologyPolicy: single-numa-node\n  options:\n"
            "    align-by-socket: true\n    distribute-cpus-across-numa: true\n"
            "    prefer-align-cpus-by-uncorecache: true\n",
            [
                (
                    "a.yaml:6:22: cpuManager.options.align-by-socket: topologyPolicy"
                    " demands a single NUMA node, not a socket; turn align-by-socket off,"
                    " or choose another topologyPolicy"
                ),
                (
                    "a.yaml:7:34: cpuManager.options.distribute-cpus-across-numa:"
                    " prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa"
                    " contradict each other; choose one of them"
                ),
            ],
            id="options that contradict each other",
        ),
    ],
)
def test_wrong_settings_are_refused_together_with_place_fact_and_remedy(
    settings: str, problems: list[str]
) -> None:
    assert refused_settings(settings) == problems


@pytest.mark.parametrize("policy", ["policy: none", "policy: "])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_policy_none_has_no_settings(policy: str, setting: str) -> None:
    key = setting.partition(":")[0]
    pools = "pools: {default: {cpus: 1}}"
    assert refused(f"{pools}\ncpuManager:\n  {policy}\n  {setting}\n") == [
        (
            f"a.yaml:4:3: cpuManager.{key}: the policy none has no such setting; remove it, or"
            " write policy: static"
        )
    ]
    empty = parse(f"{pools}\ncpuManager: {{{policy}, {key}: }}").pools.cpu_manager
    assert replace(empty, declared=False) == CPUManager()


def test_the_policy_koordinator_has_some_of_the_static_policys_options() -> None:
    file = parse("""\
        cpuManager:
          policy: koordinator
          reserved: "0,16"
          options: {full-pcpus-only: true, distribute-cpus-across-numa: true}
        """)
    options = StaticOptions(full_pcpus_only=True, distribute_cpus_across_numa=True)
    assert file.pools.cpu_manager == CPUManager("koordinator", CPUSet.of(0, 16), options)


def test_an_option_of_another_policy_is_refused_with_the_policys_own() -> None:
    settings = "options: {align-by-socket: true, full-pcpus-only: true}"
    assert refused(f"cpuManager:\n  policy: koordinator\n  reserved: 1\n  {settings}\n") == [
        (
            "a.yaml:4:13: cpuManager.options.align-by-socket: the policy koordinator has no such"
            " option; remove it: koordinator has full-pcpus-only and distribute-cpus-across-numa"
        )
    ]


def test_an_option_that_no_policy_knows_is_one_problem() -> None:
    options = "options: {FullPCPUsOnly: true}"
    assert refused(f"cpuManager: {{policy: koordinator, reserved: 1, {options}}}") == [
        (
            "a.yaml:1:58: cpuManager.options.FullPCPUsOnly: unknown key; did you mean"
            " full-pcpus-only?"
        )
    ]


def test_an_unknown_policy_hides_no_other_problem() -> None:
    assert refused("cpuManager: {policy: statik, reserved: 010, onMisfit: hold}\n") == [
        "a.yaml:1:22: cpuManager.policy: unknown value 'statik'; did you mean static?",
        (
            "a.yaml:1:40: cpuManager.reserved: '010' is not a number of CPUs from 1 to 999999999;"
            f" {RESERVED_FORM}"
        ),
    ]


def test_a_policy_that_is_not_built_in_decides_itself_about_reserved_cpus() -> None:
    text = "cpuManager: {policy: toy, onMisfit: share}"
    read = poolconfig.parse("a.yaml", text, Names(), find_policy=lambda _name: Toy)
    toy = CPUManager("toy", on_misfit=Misfit.SHARE, installed=Toy)
    assert read.pools.cpu_manager == toy


@pytest.mark.parametrize(
    "written", ["", "cpuManager:\n", "cpuManager: {}\n", "cpuManager: {policy: none}\n"]
)
def test_no_cpu_manager_policy_gives_out_the_default_pool_where_none_is_named(written: str) -> None:
    read = parse(f"pools: {{default: {{cpus: 1}}}}\n{written}").pools.cpu_manager
    assert read == CPUManager(declared="none" in written)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "cpuManager: static",
            "a.yaml:2:13: cpuManager: this must be a map; write key: value on lines of their own",
        ),
        (
            "cpuManager: {policy: nine}",
            "a.yaml:2:22: cpuManager.policy: unknown value 'nine'; did you mean none?",
        ),
        (
            "cpuManager: {policy: [none]}",
            "a.yaml:2:22: cpuManager.policy: this must be text; write a single value",
        ),
        (
            "cpuManager: {polici: none}",
            "a.yaml:2:14: cpuManager.polici: unknown key; did you mean policy?",
        ),
    ],
)
def test_a_wrong_cpu_manager_is_refused(written: str, problem: str) -> None:
    assert refused(f"pools: {{default: {{cpus: 1}}}}\n{written}\n") == [problem]


def test_a_policy_that_the_agent_knows_besides_can_be_named() -> None:
    text = "pools: {default: {cpus: 1}}\ncpuManager: {policy: toy}\n"
    (problem,) = refused(text)
    assert problem.endswith(
        "unknown value 'toy'; use none or static or dynamic or koordinator or qrm"
    )
    read = poolconfig.parse("a.yaml", text, Names(), find_policy=lambda _name: Toy)
    assert read.pools.cpu_manager == CPUManager("toy", installed=Toy)


def reserving(reserved: CPUSet | int, **cpus: str) -> NodePools:
    pools = (Pool.named(name, listed) for name, listed in cpus.items())
    return NodePools.of(*pools, cpu_manager=CPUManager("static", reserved))


@pytest.mark.parametrize("reserved", [1, 3, CPUSet.of(0), CPUSet.of(1, 16, 17)])
def test_cpus_of_the_default_pool_can_be_reserved(reserved: CPUSet | int) -> None:
    listed = reserving(reserved, default="0-1,16-17", exclusive_a="2-15")
    rest = reserving(reserved, exclusive_a="2-15")
    for pools in (listed, rest):
        assert [*cpu_manager.validate(pools, None)] == []
        assert [*cpu_manager.validate(pools, TELCO)] == []


LACKING = "reserve other CPUs, or add these to the default pool"
FEWER = "reserve fewer CPUs, or add CPUs to the default pool"


@pytest.mark.parametrize(
    ("pools", "with_machine", "problem"),
    [
        pytest.param(
            reserving(CPUSet.of(0, 5), default="0-3", shared="5"),
            False,
            f"CPUs 5 are not among the default pool's CPUs, which are 0-3; {LACKING}",
            id="of another pool",
        ),
        pytest.param(
            reserving(CPUSet.of(0, 5), shared="5"),
            False,
            f"CPUs 5 are not among the default pool's CPUs; {LACKING}",
            id="of another pool, where the default pool is the rest",
        ),
        pytest.param(
            reserving(CPUSet.of(0, 18), exclusive="2"),
            True,
            "CPUs 18 are not among the default pool's CPUs, which are 0-1,3-17,19-31; " + LACKING,
            id="the sibling of an exclusive CPU",
        ),
        pytest.param(
            reserving(CPUSet.of(0, 99)),
            True,
            f"CPUs 99 are not among the default pool's CPUs, which are 0-31; {LACKING}",
            id="that the machine does not have",
        ),
        pytest.param(
            reserving(4, default="0-3"),
            False,
            "4 of the 4 CPUs of the default pool are reserved, so no container can own a CPU; "
            + FEWER,
            id="as many as there are",
        ),
        pytest.param(
            reserving(40),
            True,
            "40 of the 32 CPUs of the default pool are reserved, so no container can own a CPU; "
            + FEWER,
            id="more than there are",
        ),
        pytest.param(
            reserving(CPUSet.parse("0-3"), default="0-3"),
            False,
            "4 of the 4 CPUs of the default pool are reserved, so no container can own a CPU; "
            + FEWER,
            id="all of them",
        ),
    ],
)
def test_reserved_cpus_are_some_of_the_default_pools(
    pools: NodePools, *, with_machine: bool, problem: str
) -> None:
    (found,) = cpu_manager.validate(pools, TELCO if with_machine else None)
    assert str(found) == f"cpuManager.reserved: {problem}"
    # The manager bars the CPUs of an error that appears with a changed machine.
    assert found.cpus is None


def test_reserved_cpus_that_are_all_offline_are_a_warning() -> None:
    pools = reserving(CPUSet.of(0, 16))
    (found,) = cpu_manager.validate(pools, MACHINE.having_lost(CPUSet.of(0, 16)))
    assert found.severity is Severity.WARNING
    assert found.what == "the reserved CPUs 0,16 are offline"
    assert [*cpu_manager.validate(pools, MACHINE.having_lost(CPUSet.of(0)))] == []


@pytest.mark.parametrize("reserved", [1, CPUSet.of(0)])
def test_a_default_pool_that_begins_above_the_machines_cpus_is_one_problem(
    reserved: CPUSet | int,
) -> None:
    file = parse("""\
        pools: {default: {cpus: "32-"}}
        cpuManager: {policy: static, reserved: 1, systemPods: {namespaces: [a], cpus: "1"}}
        """)
    manager = replace(file.pools.cpu_manager, reserved=reserved)
    pools = replace(file.pools, cpu_manager=manager)
    (problem,) = pool_rules.validate(pools, TELCO)
    assert problem.what == "this machine has no CPU from 32 on; it has 0-31"


def test_reserved_cpus_that_the_machine_lacks_are_not_offline() -> None:
    assert [*cpu_manager.validate(reserving(CPUSet.of(99), default="0-3,99"), TELCO)] == []


PERCENT = "is not a percentage; write a whole number from 0 to 100, without the sign"
TOO_MUCH = "best-effort pods have 70 % in any case, and all pods together may use 65 %"
SUPPRESSING = "cpuManager: {policy: koordinator, reserved: 1, resourceUsedThresholdWithBE: %s}"


@pytest.mark.parametrize(
    ("written", "suppression"),
    [
        ("", None),
        ("{}", None),
        ("{cpuSuppressThresholdPercent: 50}", None),
        ("{enable: false}", None),
        ("{enable: true}", Suppression(65, 0)),
        ("{enable: True, cpuSuppressThresholdPercent: }", Suppression(65, 0)),
        (
            '{enable: true, cpuSuppressThresholdPercent: 50, cpuSuppressMinPercent: "10"}',
            Suppression(50, 10),
        ),
    ],
)
def test_best_effort_pods_are_suppressed_where_the_file_enables_it(
    written: str, suppression: Suppression | None
) -> None:
    manager = parse(SUPPRESSING % written).pools.cpu_manager

    assert manager.suppression == suppression
    assert manager.follows_load == (suppression is not None)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "{enable: maybe}",
            "enable: 'maybe' is not a truth value; write true or false",
        ),
        ("{cpuSuppressThresholdPercent: 101}", f"cpuSuppressThresholdPercent: '101' {PERCENT}"),
        ("{cpuSuppressMinPercent: 10%}", f"cpuSuppressMinPercent: '10%' {PERCENT}"),
        (
            "{cpuSuppressMinPercent: 70}",
            f"cpuSuppressMinPercent: {TOO_MUCH}; write less than in cpuSuppressThresholdPercent",
        ),
        ("{enabled: true}", "enabled: unknown key; did you mean enable?"),
    ],
)
def test_what_does_not_suppress_is_refused(written: str, problem: str) -> None:
    (found,) = refused(SUPPRESSING % written)

    assert found.endswith(f"cpuManager.resourceUsedThresholdWithBE.{problem}")


@pytest.mark.parametrize("written", ["[]", "{enable: [true]}", "{cpuSuppressMinPercent: {}}"])
def test_what_has_another_form_is_refused(written: str) -> None:
    assert len(refused(SUPPRESSING % written)) == 1


def test_other_policies_do_not_suppress_best_effort_pods() -> None:
    (static,) = refused_settings("  reserved: 1\n  resourceUsedThresholdWithBE: {enable: true}\n")
    assert static == (
        "a.yaml:4:3: cpuManager.resourceUsedThresholdWithBE: the policy static has no such setting;"
        " remove it, or write policy: koordinator"
    )
    (none,) = refused("cpuManager: {policy: none, resourceUsedThresholdWithBE: {enable: true}}")
    assert "the policy none has no such setting; remove it, or write policy: koordinator" in none


NOTICE = "cpuManager:\n  policy: dynamic\n  reserved: 1\n  maxNoticeSeconds: %s\n"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("", 10), ("null", 10), ("0", 0), ("1", 1), ("'30'", 30), ("3600", 3600)],
)
def test_a_file_says_how_long_before_containers_lose_cpus(written: str, seconds: int) -> None:
    manager = parse(NOTICE % written).pools.cpu_manager

    assert manager == CPUManager("dynamic", 1, max_notice_s=seconds)
    assert parse("cpuManager: {policy: dynamic, reserved: 1}").pools.cpu_manager.max_notice_s == 10


@pytest.mark.parametrize("written", ["true", "1.5", "soon", "-1", "3601", "010", "1e3", "9" * 5000])
def test_what_is_no_number_of_seconds_is_refused(written: str) -> None:
    (problem,) = refused(NOTICE % written)
    assert problem == (
        f"a.yaml:4:21: cpuManager.maxNoticeSeconds: '{written[:63]}' is not a whole number from"
        " 0 to 3600; write one, as 10"
    )


@pytest.mark.parametrize("written", ["[1]", "{seconds: 1}"])
def test_a_list_or_a_map_is_no_number_of_seconds(written: str) -> None:
    (problem,) = refused(NOTICE % written)
    assert problem.startswith("a.yaml:4:21: cpuManager.maxNoticeSeconds: this must be text;")


@pytest.mark.parametrize("policy", ["static", "koordinator", "qrm", "none"])
def test_other_policies_take_no_cpus_from_containers_that_run(policy: str) -> None:
    reserved = "" if policy == "none" else "  reserved: 1\n"
    text = f"cpuManager:\n  policy: {policy}\n{reserved}  maxNoticeSeconds: 5\n"
    (problem,) = refused(text)
    assert problem == (
        f"a.yaml:{text.count(chr(10))}:3: cpuManager.maxNoticeSeconds: the policy {policy} has no"
        " such setting; remove it, or write policy: dynamic"
    )
