"""The keys and values of files in the documents are those that the parsers take.

A parser names what it knows where it refuses a word that is like none of these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.config import poolconfig
from cpupool.core.cpu_manager import NONE, TopologyPolicy
from cpupool.core.errors import ConfigError
from cpupool.core.names import Names
from cpupool.plugins import config_file
from cpupool.policies.built_in import BUILT_IN
from cpupool.policies.qrm.policy import QRM

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[2] / "docs/user"
PAGE = (DOCS / "configuration.md").read_text()
PLUGINS = (DOCS / "resource-plugins.md").read_text()
STRANGE = "0123456789"
POOL = "pools: {{exclusive_a: {{cpus: 2-5, {}: 0123456789}}}}"
MANAGER = "cpuManager: {{policy: koordinator, reserved: 0-0, {}}}"


def table(heading: str) -> list[tuple[str, str]]:
    """Return the rows of a section's table of keys, each as its first cell and the rest."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    (lines,) = re.findall(r"^\| key.*\n\| ---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    rows = [line.split("|", 2) for line in lines.splitlines()]
    return [(keys, rest) for _, keys, rest in rows]


def words(text: str) -> list[str]:
    """Return what is marked as code."""
    return re.findall(r"`([^`]+)`", text)


def documented(heading: str, prefix: str = "") -> dict[str, str]:
    """Return the keys of a table, as paths in a file, each with the rest of its row."""
    found: dict[str, str] = {}
    for cell, rest in table(heading):
        # The first of several keys has the path of all.
        path = prefix + cell.strip(" `")[: words(cell)[0].rfind(".") + 1]
        found |= {path + key.rpartition(".")[2]: rest for key in words(cell)}
    return found


KEYS = {
    **documented("Pool files"),
    **documented("Mixed CPUs"),
    **documented("The CPU manager", "cpuManager."),
}


def pool_file(text: str) -> object:
    """Read a pool file."""
    return poolconfig.parse("a.yaml", text, Names())


def plugins_file(text: str) -> object:
    """Read a file of our plugins."""
    return config_file.parse("a.yaml", text)


def known(text: str, parse: Callable[[str], object] = pool_file) -> set[str]:
    """Return the words that a parser knows where a file has a strange one."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    (told,) = [each.remedy for each in refused.value.problems if each.remedy.startswith("use ")]
    return set(told.removeprefix("use ").split(" or "))


def refused(text: str) -> set[str]:
    """Return the paths of what is wrong with a file."""
    try:
        pool_file(text)
    except ConfigError as error:
        return {problem.path for problem in error.problems}
    return set()


def test_the_keys_are_those_of_the_parser() -> None:
    places = {
        "": f"{STRANGE}: 1",
        "pools.<name>.": POOL.format(STRANGE),
        "mixedCPUs.": f"mixedCPUs: {{{STRANGE}: 1}}",
        "cpuManager.": MANAGER.format(f"{STRANGE}: 1"),
    }

    taken = {prefix + key for prefix, written in places.items() for key in known(written)}
    assert KEYS.keys() == taken


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("pools.<name>.hyperThreadingPolicy", POOL.format("hyperThreadingPolicy")),
        ("cpuManager.policy", f"cpuManager: {{policy: {STRANGE}}}"),
        ("cpuManager.topologyPolicy", MANAGER.format(f"topologyPolicy: {STRANGE}")),
        ("cpuManager.topologyScope", MANAGER.format(f"topologyScope: {STRANGE}")),
        ("cpuManager.onMisfit", MANAGER.format(f"onMisfit: {STRANGE}")),
        ("cpuManager.options", MANAGER.format(f"options: {{{STRANGE}: 1}}")),
        (
            "cpuManager.resourceUsedThresholdWithBE",
            MANAGER.format(f"resourceUsedThresholdWithBE: {{{STRANGE}: 1}}"),
        ),
    ],
)
def test_every_value_of_a_key_is_in_its_row(key: str, written: str) -> None:
    assert known(written) <= set(words(KEYS[key]))


def test_every_value_of_the_choice_of_cpus_has_a_row() -> None:
    listed: dict[str, set[str]] = defaultdict(set)
    key = ""
    for cell, rest in table("How CPUs are chosen"):
        # The rows of further values have no key.
        key = words(cell)[0] if words(cell) else key
        listed[key].update(words(rest.split("|")[0]))

    assert listed.keys() == known(POOL.format(STRANGE)) - {"cpus", "hyperThreadingPolicy"}
    del listed["reserved"]
    for key, values in listed.items():
        assert values == known(POOL.format(key))


@pytest.mark.parametrize("policy", BUILT_IN)
def test_what_is_required_is_what_the_page_says(policy: str) -> None:
    reserved = KEYS["cpuManager.reserved"].rpartition("required with")[2]

    # A file that names a policy needs no pools.
    assert refused(f"cpuManager: {{policy: {policy}}}") == {
        f"cpuManager.{key}" for key in ("reserved",) if f"`{policy}`" in reserved
    }
    assert refused("nodeSelector: {a: b}") == {"pools"}


@pytest.mark.parametrize("policy", [policy for policy in BUILT_IN if policy != NONE])
@pytest.mark.parametrize("topology", TopologyPolicy)
def test_numeric_goes_with_qrm_alone(policy: str, topology: TopologyPolicy) -> None:
    written = f"cpuManager: {{policy: {policy}, reserved: 0-0, topologyPolicy: {topology.value}}}"

    alone = topology is TopologyPolicy.NUMERIC
    assert (not refused(written)) == (policy == QRM or not alone)
    assert (f"Only with `{QRM}`: `{topology.value}`" in KEYS["cpuManager.topologyPolicy"]) == alone


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("pools", f"pools: {{a: {{{STRANGE}: 1}}}}"),
        ("roles", f"roles: {{a: {{{STRANGE}: 1}}}}"),
        ("nics", f"nics: {{a: {{{STRANGE}: 1}}}}"),
        ("numaNode", f"roles: {{a: {{numaNode: {STRANGE}}}}}"),
    ],
)
def test_the_file_of_our_plugins_has_the_documented_keys(key: str, written: str) -> None:
    (lines,) = re.findall(r"^\| key \| meaning \|\n\|.*\n((?:\|.*\n)+)", PLUGINS, re.MULTILINE)
    (row,) = re.findall(rf"^\| `{key}`(?: of a role)? \|.*", lines, re.MULTILINE)
    keys = set(re.findall(r"^\| `(\w+)` \|", lines, re.MULTILINE))

    assert keys == known(f"{STRANGE}: 1", plugins_file)
    assert known(written, plugins_file) <= set(words(row))
    (load,) = re.findall(r"^load: \{(.*)\}$", PLUGINS, re.MULTILINE)
    assert set(re.findall(r"(\w+):", load)) == known(f"load: {{{STRANGE}: 1}}", plugins_file)
