"""Pool files from anywhere: what is sound is read back exactly, the rest is a ConfigError."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.config import pool_rules, pool_selection, poolconfig
from cpupool.config.document import Origin
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError, Location, Problem
from cpupool.core.names import Names
from cpupool.core.pool_policy import CPUBindPolicy, ExclusivePolicy, NUMAPolicy, PoolPolicy
from cpupool.core.pools import HyperThreadingPolicy, MixedCPUs, NodePools, Pool, PoolKind

labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
words = st.sampled_from(
    [
        *("pools", "nodeSelector", "resourceBaseName", "cpus", "hyperThreadingPolicy", "kind"),
        *("cpuBindPolicy", "numaPolicy", "alignByUncoreCache", "exclusivePolicy", "reserved"),
        *("mixedCPUs", "mixedCPUs: ", "pool", "containersLimit", "256"),
        *("data", "exclusive-a", "shared", "default", "multiThreaded", "ConfigMap", "2-7", "x-"),
        *("poolconfig-a.yaml", "|", ">", "'", '"', "\\", "\\U", "&a", "*a", "!", "%", "null", "~"),
        *(
            ": ",
            ":",
            "- ",
            "? ",
            "\n",
            "\n  ",
            "\n    ",
            "{",
            "}",
            "[",
            "]",
            ", ",
            "#",
            "\t",
            "---",
        ),
        *("\u2028", "\x85", "\r", "\ufeff", "9" * 20),
    ]
)
almost_yaml = st.lists(words, max_size=40).map("".join)
almost_pool_files = almost_yaml.map(lambda text: f"pools:\n  exclusive-a:\n    cpus: {text}")


def read_everything(text: str | bytes) -> None:
    """Do what the agent and `validate` do with a file."""
    problems: list[Problem] = []
    try:
        for source in poolconfig.sources("a.yaml", text, problems):
            file = poolconfig.parse(source.name, source.text, Names(), source.origin)
            pool_selection.select([file], {})
            file.located([Problem("x", "y", path="pools.exclusive-a.cpus")])
    except ConfigError as error:
        problems += error.problems
    for problem in problems:
        assert problem.location
        assert problem.location.line >= 1
        assert problem.location.column >= 1
        assert len(str(problem).splitlines()) == 1


@given(st.one_of(st.binary(), st.text(), almost_yaml, almost_pool_files))
@example('pools: {"\\ud800\\n": {cpus: "\\ud800\\n", hyperThreadingPolicy: "\\ud800\\n"}}')
@example('kind: "\\ud800\\n"\n"\\n": 1\n"\\n": 2')
@example('"\\Uffffffff"')
@example('resourceBaseName: "a\\nb"\nnodeSelector: {"a\\nb": []}')
def test_any_file_is_read_or_refused_in_single_lines(text: str | bytes) -> None:
    read_everything(text)


LAWFUL = [
    pool
    for hyper_threading, *keys in product(
        HyperThreadingPolicy,
        (None, *CPUBindPolicy),
        NUMAPolicy,
        (None, True, False),
        ExclusivePolicy,
    )
    for pool in [
        Pool("exclusive", PoolKind.EXCLUSIVE, CPUSet.of(0), hyper_threading, PoolPolicy(*keys))
    ]
    if not pool_rules.validate(NodePools.of(pool), None)
]
"""An exclusive pool of each policy that contradicts nothing."""


@st.composite
def pools_apart(draw: st.DrawFn) -> NodePools:
    """Pools of all kinds that share no CPU."""
    names = draw(
        st.lists(
            st.from_regex(r"\A(exclusive|shared)[-_.a-z0-9]{0,9}[a-z0-9]\Z"),
            max_size=5,
            unique_by=lambda name: name.replace("-", "_").replace(".", "_"),
        )
    )
    names.append("default")
    cpus = draw(st.lists(st.integers(0, 200), min_size=len(names), unique=True))
    shared = [name for name in names if PoolKind.of_name(name) is PoolKind.SHARED]
    offered = st.builds(MixedCPUs, st.sampled_from(shared), st.integers(1, 200_000))
    # Without an exclusive pool it comes with a warning of the default pool.
    mixable = shared and any(name.startswith("exclusive") for name in names)
    return NodePools.of(
        *(pool_of(draw, name, CPUSet(cpus[at :: len(names)])) for at, name in enumerate(names)),
        mixed=draw(st.none() | offered) if mixable else None,
    )


def pool_of(draw: st.DrawFn, name: str, cpus: CPUSet) -> Pool:
    if PoolKind.of_name(name) is not PoolKind.EXCLUSIVE:
        return Pool(name, PoolKind.of_name(name), cpus)
    lawful = draw(st.sampled_from(LAWFUL))
    reserved = draw(st.sets(st.sampled_from(list(cpus)), max_size=len(cpus) - 1))
    policy = replace(lawful.policy, reserved=CPUSet(reserved))
    return replace(lawful, name=name, cpus=cpus, policy=policy)


def written(pools: NodePools, selector: dict[str, str]) -> str:
    lines = ["pools:"]
    for pool in pools:
        lines += [f"  {pool.name}:", f"    cpus: {pool.cpus}"]
        if pool.kind is PoolKind.EXCLUSIVE:
            lines.append(f"    hyperThreadingPolicy: {pool.hyper_threading.value}")
        lines += [f"    {key}: {value}" for key, value in pool.policy.written().items()]
    if pools.mixed:
        limit = f"containersLimit: {pools.mixed.containers_limit}"
        lines += ["mixedCPUs:", f"  pool: {pools.mixed.pool}", f"  {limit}"]
    lines += ["nodeSelector:", *(f"  {key}: {value}" for key, value in selector.items())]
    return "\n".join(lines)


@given(pools_apart(), labels)
def test_pools_that_are_written_are_read_back(pools: NodePools, selector: dict[str, str]) -> None:
    file = poolconfig.parse("a.yaml", written(pools, selector), Names())
    assert file.pools == pools
    assert file.node_selector == selector
    assert file.warnings == ()


@given(almost_pool_files, st.integers(1, 9), st.integers(0, 3))
@example("pools:\n  exclusive-a:\n    cpus:\n    cpus:", 1, 2)  # its problem names a line itself
def test_a_file_in_a_manifest_has_its_own_problems_at_the_manifests_lines(
    text: str, indentation: int, lines_before: int
) -> None:
    before = "# comment\n" * lines_before + "kind: ConfigMap\ndata:\n poolconfig-a.yaml: |\n"
    manifest = before + textwrap.indent(text, " " * (1 + indentation))
    try:
        (source,) = poolconfig.sources("map.yaml", manifest, [])
    except ConfigError:
        return  # The text holds something that ends or breaks the block around it.
    if source.text != text:
        return
    shift = Origin("map.yaml", lines_before + 4, 2 + indentation)
    assert source.origin == shift
    assert _problems(source.text, source.origin) == [
        (_moved_down(what, shift.line - 1), shift.at(place.line - 1, place.column - 1))
        for what, place in _problems(text, Origin("a.yaml"))
    ]


def _moved_down(what: str, lines: int) -> str:
    """Shift the line that a problem's text names."""
    return re.sub(r"(?<=in line )\d+", lambda line: str(int(line[0]) + lines), what)


def _problems(text: str | bytes, origin: Origin) -> list[tuple[str, Location]]:
    try:
        poolconfig.parse("a.yaml", text, Names(), origin)
    except ConfigError as error:
        return [(one.what, one.location) for one in error.problems if one.location]
    return []


@given(st.lists(labels, max_size=4), labels)
def test_a_node_takes_a_file_only_if_all_labels_of_no_other_match(
    selectors: list[dict[str, str]], node: dict[str, str]
) -> None:
    pools = NodePools.of(Pool.named("default", "0"))
    files = [
        poolconfig.parse(f"{number}.yaml", written(pools, selector), Names())
        for number, selector in enumerate(selectors)
    ]
    matching = [
        file
        for file, selector in zip(files, selectors, strict=True)
        if all(node.get(key) == value for key, value in selector.items())
    ]
    matching = [file for file in matching if file.node_selector] or matching
    try:
        taken = pool_selection.select(files, node)
    except ConfigError as error:
        assert len(matching) > 1
        for problem, file in zip(error.problems, matching[1:], strict=True):
            assert problem.what.startswith(f"{file.name} and {matching[0].name} ")
    else:
        assert matching == ([taken] if taken else [])
