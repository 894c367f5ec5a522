from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import Severity
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from tests.machines import MACHINES
from tests.unit.config.poolconfig.files import parse, refused

MIXED = "pools: {shared: {cpus: 1}, exclusive: {cpus: 2}}\nmixedCPUs:"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param("", None, id="null"),
        pytest.param(" ~", None, id="a tilde"),
        pytest.param("\n  pool: shared", MixedCPUs("shared", 256), id="a pool"),
        pytest.param(" {pool: shared, containersLimit: }", MixedCPUs("shared"), id="a null limit"),
        pytest.param(
            " {containersLimit: 1, pool: shared}", MixedCPUs("shared", 1), id="a limit, too"
        ),
    ],
)
def test_mixed_cpus_are_switched_on_by_the_name_of_a_pool(
    written: str, expected: MixedCPUs | None
) -> None:
    assert parse(f"{MIXED}{written}").pools.mixed == expected


@pytest.mark.parametrize(
    ("written", "problems"),
    [
        pytest.param(
            " true",
            ["a.yaml:2:12: mixedCPUs: this must be a map; write key: value on lines of their own"],
            id="a yes",
        ),
        pytest.param(
            " {}",
            ["a.yaml:2:1: mixedCPUs.pool: '' is no shared pool of this file; name shared"],
            id="no pool",
        ),
        pytest.param(
            "\n  pools: shared\n  pool: [shared]",
            [
                "a.yaml:3:3: mixedCPUs.pools: unknown key; did you mean pool?",
                "a.yaml:4:9: mixedCPUs.pool: this must be text; write a single value",
            ],
            id="a list of pools",
        ),
        pytest.param(
            "\n  pool: exclusive\n  containersLimit: 0",
            [
                (
                    "a.yaml:3:9: mixedCPUs.pool: 'exclusive' is no shared pool of this file; name"
                    " shared"
                ),
                (
                    "a.yaml:4:20: mixedCPUs.containersLimit: '0' is no whole number from 1 to"
                    " 999999999; write one, as 256, or remove the line"
                ),
            ],
            id="another kind of pool, and nobody",
        ),
        pytest.param(
            " {pool: shared, containersLimit: [1]}",
            ["a.yaml:2:44: mixedCPUs.containersLimit: this must be text; write a single value"],
            id="a list of limits",
        ),
        pytest.param(
            " {pool: shared, containersLimit: 1.5}",
            [
                (
                    "a.yaml:2:44: mixedCPUs.containersLimit: '1.5' is no whole number from 1 to"
                    " 999999999; write one, as 256, or remove the line"
                ),
            ],
            id="half a container",
        ),
    ],
)
def test_mixed_cpus_that_cannot_be_are_reported_with_place_fact_and_remedy(
    written: str, problems: list[str]
) -> None:
    assert refused(f"{MIXED}{written}") == problems


def test_a_policy_where_it_has_no_meaning_is_a_warning_only() -> None:
    file = parse("pools: {shared: {cpus: 1, hyperThreadingPolicy: singleThreaded}}")
    assert [str(problem) for problem in file.warnings] == [
        (
            "a.yaml:1:49: warning: pools.shared.hyperThreadingPolicy: this has no meaning for a"
            " shared"
            " pool; remove it"
        )
    ]
    assert file.warnings[0].severity is Severity.WARNING


def test_a_pool_says_how_its_cpus_are_chosen() -> None:
    file = parse("""\
        pools:
          exclusive_a:
            cpus: 2-7
            cpuBindPolicy: fullPhysicalCores
            numaPolicy: distributed
            alignByUncoreCache: false
            exclusivePolicy: numaNode
            reserved: 2-3
          exclusive_b: {cpus: 8, cpuBindPolicy: , numaPolicy: "", alignByUncoreCache: true}
          exclusive_c: {cpus: 9, reserved: }
        """)
    assert [pool.policy for pool in file.pools] == [
        PoolPolicy(
            CPUBindPolicy.FULL_PHYSICAL_CORES,
            NUMAPolicy.DISTRIBUTED,
            align_by_uncore_cache=False,
            exclusive=ExclusivePolicy.NUMA_NODE,
            reserved=CPUSet.of(2, 3),
        ),
        PoolPolicy(align_by_uncore_cache=True),
        PoolPolicy(),
    ]
    assert file.warnings == ()


def test_words_that_are_no_policy_are_reported_where_they_stand() -> None:
    assert refused("""\
        pools:
          exclusive:
            cpus: 2-7
            cpuBindPolicy: FullPhysicalCore
            numaPolicy: pack
            alignByUncoreCache: yes
            exclusivePolicy: core
            reserved: 2-x
            cpuBindPolcy: spreadAcrossCores
        """) == [
        (
            "a.yaml:4:20: pools.exclusive.cpuBindPolicy: unknown value 'FullPhysicalCore'; did you"
            " mean fullPhysicalCores?"
        ),
        ("a.yaml:5:17: pools.exclusive.numaPolicy: unknown value 'pack'; did you mean packed?"),
        ("a.yaml:6:25: pools.exclusive.alignByUncoreCache: unknown value 'yes'; use true or false"),
        (
            "a.yaml:7:22: pools.exclusive.exclusivePolicy: unknown value 'core'; use none or"
            " physicalCore or numaNode"
        ),
        (
            "a.yaml:8:15: pools.exclusive.reserved: '2-x' is not a CPU list: '2-x' is neither a"
            " CPU, as 4, nor a range, as 4-7 or 0-31:2; write the CPUs as in 2-7,12"
        ),
        "a.yaml:9:5: pools.exclusive.cpuBindPolcy: unknown key; did you mean cpuBindPolicy?",
    ]


def test_policies_that_contradict_themselves_are_reported_at_their_keys() -> None:
    assert refused("""\
        pools:
          exclusive:
            cpus: 2-7
            hyperThreadingPolicy: multiThreaded
            cpuBindPolicy: fullPhysicalCores
            reserved: 1-2
        """) == [
        (
            "a.yaml:5:20: pools.exclusive.cpuBindPolicy: multiThreaded pools hand out whole cores"
            " already; remove one of the two"
        ),
        (
            "a.yaml:6:15: pools.exclusive.reserved: CPUs 1 are not among the pool's own, 2-7;"
            " remove them here, or add them to its cpus"
        ),
    ]


def test_keys_of_exclusive_pools_are_doubted_elsewhere_and_have_no_effect() -> None:
    file = parse("""\
        pools:
          shared:
            cpus: 2-7
            cpuBindPolicy: fullPhysicalCores
            numaPolicy: packed
            alignByUncoreCache: false
            exclusivePolicy: none
            reserved: 2
          default: {cpus: 0, reserved: }
        """)
    assert [str(problem) for problem in file.warnings] == [
        (
            f"a.yaml:{line}:{column}: warning: pools.shared.{key}: this has no meaning for a shared"
            " pool; remove it"
        )
        for line, column, key in (
            (4, 20, "cpuBindPolicy"),
            (5, 17, "numaPolicy"),
            (6, 25, "alignByUncoreCache"),
            (7, 22, "exclusivePolicy"),
            (8, 15, "reserved"),
        )
    ]
    assert file.pools == NodePools.of(Pool.named("shared", "2-7"), Pool.named("default", "0"))


@pytest.mark.parametrize(
    ("written", "shown", "on_machine"),
    [
        ("16-", "16-", "16-31"),
        ("0-1, 16 - ", "0-1,16-", "0-1,16-31"),
        ("0-1,40-", "0-1,40-", "0-1"),
    ],
)
def test_the_default_pool_may_have_all_cpus_from_one_on(
    written: str, shown: str, on_machine: str
) -> None:
    file = parse(f"pools:\n  exclusive: {{cpus: 2-3}}\n  default: {{cpus: {written!r}}}\n")
    default = file.pools.by_name("default")
    assert default is not None
    assert default.listed == shown
    present = MACHINES["telco_2s_2n_16c32t"].topology().present
    assert str(default.on(present).cpus) == on_machine


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        (
            'exclusive: {cpus: "2-"}',
            (
                "a.yaml:2:21: pools.exclusive.cpus: only the default pool may have all CPUs from"
                " one on; write the last CPU, as in 2-3"
            ),
        ),
        (
            'default: {cpus: "8192-"}',
            "a.yaml:2:19: pools.default.cpus: CPU 8192 is above 8191; begin with a lower CPU",
        ),
        (
            'default: {cpus: "4-"}\n  shared: {cpus: "8,11-12"}',
            (
                "a.yaml:2:19: pools.default.cpus: other pools have CPUs 8,11-12, which 4- includes;"
                " write 4-7,9-10,13- in place of 4-"
            ),
        ),
        (
            'default: {cpus: "8190-"}\n  shared: {cpus: "8191"}',
            (
                "a.yaml:2:19: pools.default.cpus: other pools have CPUs 8191, which 8190- includes;"
                " write 8190 in place of 8190-"
            ),
        ),
        *(
            (
                f'default: {{cpus: "{cpus}"}}',
                (
                    "a.yaml:2:19: pools.default.cpus: '2-' has no end, and other CPUs follow;"
                    " write 2- last, or its last CPU"
                ),
            )
            for cpus in ("2-,17", "0,2-,4-")
        ),
        (
            'default: {cpus: ",16-"}',
            (
                "a.yaml:2:19: pools.default.cpus: ',16-' is not a CPU list: '' is an empty piece:"
                " remove the extra comma; write the CPUs as in 2-7,12"
            ),
        ),
        (
            'default: {cpus: "0,4-"}\n  exclusive: {cpus: "4"}',
            (
                "a.yaml:2:19: pools.default.cpus: other pools have CPUs 4, which 4- includes;"
                " write 5- in place of 4-"
            ),
        ),
    ],
)
def test_an_open_end_that_leaves_doubts_is_refused(pools: str, problem: str) -> None:
    assert refused(f"pools:\n  {pools}\n") == [problem]
