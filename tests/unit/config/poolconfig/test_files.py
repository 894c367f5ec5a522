from __future__ import annotations

import pytest

from cpupool.config import poolconfig
from cpupool.config.poolconfig import Source
from cpupool.core.errors import Location, Problem, Severity
from cpupool.core.names import Names
from cpupool.core.pools import HyperThreadingPolicy, NodePools, Pool
from tests.unit.config.poolconfig.files import GOOD, parse, refused


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


def test_problems_with_the_pools_are_reported_where_they_stand() -> None:
    located = parse(GOOD).located([Problem("it is red", "paint it", path="pools.default.cpus")])
    assert [str(problem) for problem in located] == [
        "a.yaml:9:11: pools.default.cpus: it is red; paint it"
    ]


def test_problems_are_reported_in_the_order_of_the_file() -> None:
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


@pytest.mark.parametrize(
    ("label", "value"),
    [("<key>", "<value>"), ("", "x"), ("a", "b c"), ("A.b/c", "x"), ("a/b/c", "x"), ("a" * 64, "")],
)
def test_a_label_that_no_node_can_have_is_a_warning(label: str, value: str) -> None:
    file = parse(f"pools: {{shared: {{cpus: 1}}}}\nnodeSelector:\n  '{label}': '{value}'\n")
    (problem,) = file.warnings
    assert problem.location == Location("a.yaml", 3, len(label) + 7)
    assert problem.severity is Severity.WARNING
    assert problem.what == "no node can have this label, so the file is for none"


@pytest.mark.parametrize("selector", ["a: ''", "example.com/a_b.C: x-1", "a: ~", "1: 2"])
def test_a_label_that_a_node_can_have_is_none(selector: str) -> None:
    assert parse(f"pools: {{shared: {{cpus: 1}}}}\nnodeSelector: {{{selector}}}").warnings == ()


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
def test_a_wrong_file_is_reported_with_place_fact_and_remedy(
    text: str | bytes, problems: list[str]
) -> None:
    assert refused(text) == problems


def test_rules_between_pools_are_reported_at_their_cpus_together_with_the_rest() -> None:
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
