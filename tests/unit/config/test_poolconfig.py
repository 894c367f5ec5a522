"""CPU-Pooler's pool files: what they mean, everything wrong with them, and who takes which."""

from __future__ import annotations

import textwrap

import pytest

from cpupool.config import poolconfig
from cpupool.config.document import Origin
from cpupool.config.poolconfig import PoolFile, Source
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Location, Problem, Severity
from cpupool.core.names import Names
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import CPUManager, HyperThreadingPolicy, MixedCPUs, NodePools, Pool

GOOD = """\
resourceBaseName: nokia.k8s.io
pools:
  exclusive-pool:
    cpus : "2-7"
    hyperThreadingPolicy: multiThreaded
  shared-pool:
    cpus: 1
  default:
    cpus: 010, 0 - 0
nodeSelector:
  nodeType: on
  rack:
"""


def parse(text: str | bytes, name: str = "a.yaml", domain: str = "nokia.k8s.io") -> PoolFile:
    return poolconfig.parse(
        name, textwrap.dedent(text) if isinstance(text, str) else text, Names(domain)
    )


def refused(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    return [str(problem) for problem in raised.value.problems]


def test_a_file_gives_its_pools_and_its_selector() -> None:
    file = parse(GOOD)
    assert file.name == "a.yaml"
    assert file.pools == NodePools.of(
        Pool.named("exclusive-pool", "2-7", multi_threaded=True),
        Pool.named("shared-pool", "1"),
        Pool.named("default", "0,10"),
    )
    assert file.node_selector == {"nodeType": "on", "rack": ""}
    assert file.warnings == ()


def test_a_place_is_known_for_every_path_written_and_for_what_encloses_the_others() -> None:
    file = parse(GOOD)
    assert file.locate("pools.exclusive-pool.cpus") == Location("a.yaml", 4, 12)
    assert file.locate("pools.shared-pool") == Location("a.yaml", 6, 3)
    assert file.locate("pools.shared-pool.hyperThreadingPolicy") == Location("a.yaml", 6, 3)
    assert file.locate("elsewhere") == Location("a.yaml", 1, 1)


def test_problems_with_the_pools_are_told_where_they_stand() -> None:
    located = parse(GOOD).located([Problem("it is red", "paint it", path="pools.default.cpus")])
    assert [str(problem) for problem in located] == [
        "a.yaml:9:11: pools.default.cpus: it is red; paint it"
    ]


def test_problems_are_told_in_the_order_of_the_file() -> None:
    paths = ("pools.default.cpus", "pools.exclusive-pool.cpus", "pools.shared-pool.cpus")
    located = parse(GOOD).located([Problem("it is red", "paint it", path=path) for path in paths])
    assert [problem.location and problem.location.line for problem in located] == [4, 7, 9]


def test_the_problems_of_all_files_are_kept_and_the_good_ones_read() -> None:
    texts = {"a.yaml": "pools: x", "b.yaml": GOOD, "c.yaml": "]"}
    problems: list[Problem] = []
    files = poolconfig.parse_all(
        [Source.of(name, text) for name, text in texts.items()], Names(), problems
    )
    assert [file.name for file in files] == ["b.yaml"]
    assert [problem.location and problem.location.file for problem in problems] == [
        "a.yaml",
        "c.yaml",
    ]


def test_a_bare_file_is_for_every_node() -> None:
    file = parse("pools: {exclusive: {cpus: 2}}")
    assert file.node_selector == {}
    assert file.matches({})


def test_a_default_pool_with_nearly_another_name_is_a_warning() -> None:
    file = parse("pools:\n  exlusive-pool: {cpus: 2}\n  shared: {cpus: 1}\n")
    (problem,) = file.warnings
    assert str(problem) == (
        "a.yaml:2:18: warning: pools.exlusive-pool: with this name it is the default pool, as no"
        " exclusive pool begins so; begin it with exclusive if that is meant"
    )
    assert parse("pools: {cpupool1: {cpus: 2}}").warnings == ()


@pytest.mark.parametrize("written", ["", "''", "~", "singleThreaded"])
def test_single_threaded_is_the_default(written: str) -> None:
    file = parse(f"pools: {{exclusive: {{cpus: 2, hyperThreadingPolicy: {written}}}}}")
    (pool,) = file.pools
    assert pool.hyper_threading is HyperThreadingPolicy.SINGLE_THREADED


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        pytest.param(
            "pools:\n  exclusive:\n    cpus: 2-x\n",
            [
                (
                    "a.yaml:3:11: pools.exclusive.cpus: '2-x' is not a CPU list: '2-x' is neither"
                    " a CPU,"
                    " as 4, nor a range, as 4-7 or 0-31:2; write the CPUs as in 2-7,12"
                )
            ],
            id="an unreadable CPU list",
        ),
        pytest.param(
            "pools:\n  exclusive:\n    cpus: [2, 3]\n",
            ["a.yaml:3:11: pools.exclusive.cpus: this must be text; write a single value"],
            id="a YAML list of CPUs",
        ),
        pytest.param(
            "pools:\n  exclusive: 2-3\n",
            [
                (
                    "a.yaml:2:14: pools.exclusive: this must be a map; write key: value on lines of"
                    " their own"
                )
            ],
            id="CPUs in place of a pool",
        ),
        pytest.param(
            "pools:\n  exclusive:\n  default: {cpus: }\n",
            [
                (
                    "a.yaml:2:13: pools.exclusive.cpus: the pool has no CPUs; list some, or"
                    " remove the"
                    " pool"
                ),
                (
                    "a.yaml:3:18: pools.default.cpus: the pool has no CPUs; list some, or remove"
                    " the"
                    " pool"
                ),
            ],
            id="pools without CPUs",
        ),
        pytest.param(
            "pools:\n  exclusive:\n    cpu: 2\n    cpus: 2\n    colour: red\n",
            [
                "a.yaml:3:5: pools.exclusive.cpu: unknown key; did you mean cpus?",
                (
                    "a.yaml:5:5: pools.exclusive.colour: unknown key; use cpus or"
                    " hyperThreadingPolicy or cpuBindPolicy or numaPolicy or alignByUncoreCache or"
                    " exclusivePolicy or reserved"
                ),
            ],
            id="unknown keys of a pool",
        ),
        pytest.param(
            "Pools: {}\npools: {exclusive: {cpus: 1}}\nnodeselector: {}\nx: y\n",
            [
                "a.yaml:1:1: Pools: unknown key; did you mean pools?",
                "a.yaml:3:1: nodeselector: unknown key; did you mean nodeSelector?",
                (
                    "a.yaml:4:1: x: unknown key; use pools or cpuManager or mixedCPUs or"
                    " nodeSelector or resourceBaseName"
                ),
            ],
            id="unknown keys of the file",
        ),
        pytest.param(
            "pools:\n  exclusive: {cpus: 2, hyperThreadingPolicy: multithreaded}\n"
            "  shared: {cpus: 1, hyperThreadingPolicy: no}\n",
            [
                (
                    "a.yaml:2:46: pools.exclusive.hyperThreadingPolicy: unknown value"
                    " 'multithreaded';"
                    " did you mean multiThreaded?"
                ),
                (
                    "a.yaml:3:43: pools.shared.hyperThreadingPolicy: unknown value 'no'; use"
                    " singleThreaded or multiThreaded"
                ),
            ],
            id="unknown policies",
        ),
        pytest.param(
            "pools: {exclusive: {cpus: 2, hyperThreadingPolicy: [multiThreaded]}}",
            [
                (
                    "a.yaml:1:52: pools.exclusive.hyperThreadingPolicy: this must be text; write a"
                    " single value"
                )
            ],
            id="a list of policies",
        ),
        pytest.param(
            "pools:\n  exclusive a:\n    cpus: x\n",
            [
                (
                    "a.yaml:2:3: pools.exclusive a: no resource can have this name; use up to 63"
                    " letters, digits, -, _ and ., with a letter or digit at both ends"
                ),
                (
                    "a.yaml:3:11: pools.exclusive a.cpus: 'x' is not a CPU list: 'x' is neither a"
                    " CPU,"
                    " as 4, nor a range, as 4-7 or 0-31:2; write the CPUs as in 2-7,12"
                ),
            ],
            id="a name that no resource can have",
        ),
        pytest.param(
            "pools: {shared: {cpus: 1}}\nresourceBaseName: intel.com\n",
            [
                (
                    "a.yaml:2:19: resourceBaseName: 'intel.com' is not the agent's resource domain,"
                    " nokia.k8s.io; remove this line, or set the domain with the agent's"
                    " --resource-domain"
                )
            ],
            id="another resource domain",
        ),
        pytest.param(
            "pools: {shared: {cpus: 1}}\nresourceBaseName: {a: b}\n",
            ["a.yaml:2:19: resourceBaseName: this must be text; write a single value"],
            id="a resource domain that is no text",
        ),
        pytest.param(
            "pools: {shared: {cpus: 1}}\nnodeSelector: {a: [b], c: {d: e}}\n",
            [
                "a.yaml:2:19: nodeSelector.a: this must be text; write a single value",
                "a.yaml:2:27: nodeSelector.c: this must be text; write a single value",
            ],
            id="labels that are no text",
        ),
        pytest.param(
            "pools: {shared: {cpus: 1}}\nnodeSelector: nodeType=dpdk\n",
            [
                (
                    "a.yaml:2:15: nodeSelector: this must be a map; write key: value on lines of"
                    " their"
                    " own"
                )
            ],
            id="a selector that is no map",
        ),
        pytest.param(
            "pools:\n  shared: {cpus: 1}\n  nodeSelector:\n    nodeType: dpdk\n",
            [
                (
                    "a.yaml:3:3: pools.nodeSelector: this stands inside pools, where each key is"
                    " the name of a pool; move it out, to the left of the pools"
                )
            ],
            id="a selector inside pools, as in CPU-Pooler's README",
        ),
        pytest.param(
            "nodeSelector: {a: b}\n",
            ["a.yaml:1:1: pools: there is no pool; give each pool a name and its cpus"],
            id="no pools",
        ),
        pytest.param(
            "nodeSelector: {a: b}\npools: {}\n",
            ["a.yaml:2:8: pools: there is no pool; give each pool a name and its cpus"],
            id="an empty map of pools",
        ),
        pytest.param(
            "pools: [exclusive]\n",
            ["a.yaml:1:8: pools: this must be a map; write key: value on lines of their own"],
            id="a list of pools",
        ),
        pytest.param(
            "",
            ["a.yaml:1:1: pools: there is no pool; give each pool a name and its cpus"],
            id="an empty file",
        ),
        pytest.param(
            "just text\n",
            ["a.yaml:1:1: this must be a map; write key: value on lines of their own"],
            id="a file that is no map",
        ),
        pytest.param(
            "pools:\n  default: {cpus: 0}\n  exclusive: {cpus: 1}\n  default: {cpus: 2}\n",
            [
                (
                    "a.yaml:4:3: pools.default: this key stands here twice, first in line 2; keep"
                    " one of"
                    " the two"
                )
            ],
            id="a pool twice",
        ),
        pytest.param(
            b"pools:\n  \xff",
            ["a.yaml:2:3: the byte 0xff is not UTF-8; save the file as UTF-8"],
            id="bytes that are no text",
        ),
    ],
)
def test_a_wrong_file_is_told_with_place_fact_and_remedy(
    text: str | bytes, problems: list[str]
) -> None:
    assert refused(text) == problems


def test_rules_between_pools_are_told_at_their_cpus_together_with_the_rest() -> None:
    assert refused("""\
        pools:
          shared:
            cpus: 1-3
          exclusive:
            cpus: 3
            hyperThreadingPolicy: none
          default:
            cpus: 1
            hyperThreadingPolicy: multiThreaded
        """) == [
        (
            "a.yaml:5:11: pools.exclusive.cpus: CPUs 3 are also in shared; an exclusive CPU may"
            " be in"
            " one pool only: remove them from one of the two"
        ),
        (
            "a.yaml:6:27: pools.exclusive.hyperThreadingPolicy: unknown value 'none'; use"
            " singleThreaded"
            " or multiThreaded"
        ),
        (
            "a.yaml:8:11: warning: pools.default.cpus: CPUs 1 are also in shared: both pools run on"
            " them; keep them in one pool unless sharing is meant"
        ),
        (
            "a.yaml:9:27: warning: pools.default.hyperThreadingPolicy: this has no meaning for a"
            " default"
            " pool; remove it"
        ),
    ]


@pytest.mark.parametrize(
    "written", ["", "cpuManager:\n", "cpuManager: {}\n", "cpuManager: {policy: none}\n"]
)
def test_no_cpu_manager_policy_gives_out_the_default_pool_where_none_is_named(written: str) -> None:
    assert parse(f"pools: {{default: {{cpus: 1}}}}\n{written}").pools.cpu_manager == CPUManager()


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
    assert refused(text) == ["a.yaml:2:22: cpuManager.policy: unknown value 'toy'; use none"]
    read = poolconfig.parse("a.yaml", text, Names(), cpu_managers=("none", "toy"))
    assert read.pools.cpu_manager == CPUManager("toy")


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
def test_mixed_cpus_that_cannot_be_are_told_with_place_fact_and_remedy(
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


def test_words_that_are_no_policy_are_told_where_they_stand() -> None:
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


def test_policies_that_contradict_themselves_are_told_at_their_keys() -> None:
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


def test_the_resource_domain_of_an_older_file_may_be_the_agents() -> None:
    text = "pools: {shared: {cpus: 1}}\nresourceBaseName: example.com"
    assert parse(text, domain="example.com").pools == parse("pools: {shared: {cpus: 1}}").pools


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("poolconfig-a.yaml", True),
        ("poolconfig-.yaml", True),
        ("poolconfig-a.yml", True),
        ("poolconfig-a", True),
        ("poolconfig.yaml", False),
        ("..data", False),
    ],
)
def test_pool_files_are_known_by_their_name(name: str, is_one: bool) -> None:
    assert poolconfig.is_pool_file(name) is is_one


MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: any, labels: {a: b}}
data:
  README: see poolconfig-a.yaml
  poolconfig-a.yaml: |
    # comment
    pools:
      exclusive: {cpus: 2-x}
  poolconfig-b.yaml: "pools:\\n  shared: {cpus: x}\\n"
binaryData: {}
"""


def sources(text: str | bytes) -> tuple[tuple[Source, ...], list[str]]:
    problems: list[Problem] = []
    found = poolconfig.sources("map.yaml", text, problems)
    return found, [str(problem) for problem in problems]


def test_a_pool_file_is_its_only_source() -> None:
    for text in (GOOD, GOOD.encode(), "", "[]", "a: 1\na: 2\n"):
        assert sources(text) == ((Source("map.yaml", text, Origin("map.yaml")),), [])


@pytest.mark.parametrize(
    ("name", "doubtful"),
    [
        ("poolconfig.yaml", True),
        ("poolConfig-a.yaml", True),
        ("pool-config-a.yaml", True),
        ("poolconfig_a.yaml", True),
        ("poolconf-a.yaml", True),
        ("README", False),
        ("cpu-pools.yaml", False),
    ],
)
def test_a_key_with_nearly_a_pool_files_name_is_a_warning(name: str, doubtful: bool) -> None:
    found, problems = sources(f"kind: ConfigMap\ndata:\n  {name}: x\n  poolconfig-a: x\n")
    assert [source.name for source in found] == ["poolconfig-a"]
    told = (
        f"map.yaml:3:3: warning: {name!r} is no pool file, as it does not begin with poolconfig-;"
        " rename it if it is one"
    )
    assert problems == [told] * doubtful


def test_a_manifest_has_a_source_for_each_of_its_pool_files() -> None:
    found, problems = sources(MANIFEST.encode())
    assert [source.name for source in found] == ["poolconfig-a.yaml", "poolconfig-b.yaml"]
    assert problems == []


def test_problems_in_a_manifest_stand_at_its_own_lines_or_at_the_key_of_a_quoted_text() -> None:
    places = []
    for source in sources(MANIFEST)[0]:
        with pytest.raises(ConfigError) as raised:
            poolconfig.parse(source.name, source.text, Names(), source.origin)
        places += [problem.location for problem in raised.value.problems]
    assert places == [Location("map.yaml", 9, 25), Location("map.yaml", 10, 3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            "kind: Pod\ndata: {poolconfig-a.yaml: x}\n",
            "map.yaml:1:7: kind: this is no ConfigMap; give a ConfigMap or a pool file",
            id="another kind",
        ),
        pytest.param(
            "kind: ConfigMap\n",
            "map.yaml:1:1: data: there is no key of the form poolconfig-<name>.yaml; put a pool"
            " file under one",
            id="no data",
        ),
        pytest.param(
            "kind: ConfigMap\ndata: {a.yaml: x}\n",
            "map.yaml:2:7: data: there is no key of the form poolconfig-<name>.yaml; put a pool"
            " file under one",
            id="no pool file",
        ),
        pytest.param(
            "kind: ConfigMap\ndata: [x]\n",
            "map.yaml:2:7: data: this must be a map; write key: value on lines of their own",
            id="data that is no map",
        ),
        pytest.param(
            "kind: ConfigMap\ndata:\n  poolconfig-a.yaml:\n    pools: {}\n",
            "map.yaml:4:5: data.poolconfig-a.yaml: this must be text; write a single value",
            id="a pool file that is no text",
        ),
        pytest.param(
            "kind: [ConfigMap]\ndata: {poolconfig-a.yaml: [x]}\n",
            "map.yaml:1:7: kind: this must be text; write a single value",
            id="a kind that is no text",
        ),
    ],
)
def test_a_wrong_manifest_is_told(text: str, problem: str) -> None:
    found, problems = sources(text)
    assert found == ()
    assert problems[0] == problem


def test_a_key_that_stands_twice_in_a_manifest_is_told_and_its_pool_files_still_read() -> None:
    found, problems = sources(MANIFEST + "kind: ConfigMap\n")
    assert len(found) == 2
    assert problems == [
        "map.yaml:12:1: kind: this key stands here twice, first in line 2; keep one of the two"
    ]


def files(*selectors: str) -> list[PoolFile]:
    """Make files a.yaml, b.yaml, ... with these selectors."""
    return [
        parse(f"nodeSelector: {{{selector}}}\npools: {{shared: {{cpus: 1}}}}", f"{name}.yaml")
        for name, selector in zip("abc", selectors, strict=False)
    ]


@pytest.mark.parametrize(
    ("selectors", "labels", "taken"),
    [
        pytest.param(["t: x", "t: y"], {"t": "y", "z": "1"}, "b.yaml", id="the one that matches"),
        pytest.param(["t: x, u: y"], {"t": "x"}, None, id="one label of two is no match"),
        pytest.param(["t: x, u: y"], {"t": "x", "u": "y"}, "a.yaml", id="all labels match"),
        pytest.param(["t: x"], {}, None, id="a node without labels"),
        pytest.param(["t: ''"], {}, None, id="an empty value is not a missing label"),
        pytest.param([""], {"t": "x"}, "a.yaml", id="an empty selector is for every node"),
        pytest.param(["", "t: x"], {"t": "x"}, "b.yaml", id="a match wins over no selector"),
        pytest.param(["", "t: x"], {"t": "y"}, "a.yaml", id="no selector wins over no match"),
        pytest.param([], {"t": "x"}, None, id="no files"),
    ],
)
def test_a_node_takes_the_file_whose_labels_all_match(
    selectors: list[str], labels: dict[str, str], taken: str | None
) -> None:
    chosen = poolconfig.select(files(*selectors), labels)
    assert (chosen.name if chosen else None) == taken


def test_two_files_for_one_node_are_an_error_that_names_both() -> None:
    with pytest.raises(ConfigError) as raised:
        poolconfig.select(files("t: x", "u: y", "v: z"), {"t": "x", "u": "y"})
    assert str(raised.value) == (
        "b.yaml:1:1: nodeSelector: b.yaml and a.yaml (a.yaml:1:1) both match this node;"
        " change one so that no node matches both"
    )


def test_every_further_file_for_one_node_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        poolconfig.select(files("", "", ""), {"t": "x"})
    assert [problem.what[:17] for problem in raised.value.problems] == [
        "b.yaml and a.yaml",
        "c.yaml and a.yaml",
    ]


@pytest.mark.parametrize(
    ("selectors", "count"),
    [
        pytest.param(["t: x", "t: y"], 0, id="one label with two values"),
        pytest.param(["t: x", "u: y"], 0, id="two labels that a node may have one of"),
        pytest.param(["t: x", "t: x"], 1, id="the same labels"),
        pytest.param(["t: x", "t: x, u: y"], 1, id="some of the other's labels"),
        pytest.param(["t: x, u: y", "t: x"], 1, id="the other way round"),
        pytest.param(["", "t: x"], 0, id="every node and some nodes"),
        pytest.param(["", "", ""], 3, id="every pair"),
    ],
)
def test_files_that_always_match_together_are_rivals(selectors: list[str], count: int) -> None:
    problems = poolconfig.rivals(files(*selectors))
    assert len(problems) == count
    assert all(problem.severity is Severity.ERROR for problem in problems)


def test_rivals_are_named_with_their_places() -> None:
    assert [str(problem) for problem in poolconfig.rivals(files("t: x", "t: x"))] == [
        (
            "b.yaml:1:1: nodeSelector: b.yaml and a.yaml (a.yaml:1:1) both match every node that"
            " one of"
            " them is for; change one so that no node matches both"
        )
    ]
