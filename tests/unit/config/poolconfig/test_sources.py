from __future__ import annotations

import pytest

from cpupool.config import poolconfig
from cpupool.config.document import Origin
from cpupool.config.poolconfig import Source
from cpupool.core.errors import ConfigError, Location
from cpupool.core.names import Names
from tests.unit.config.poolconfig.files import GOOD, parse, sources


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


@pytest.mark.parametrize("key", ["poolconfig-<name>.yaml", "poolconfig-a b", "poolconfig-é"])
def test_a_key_that_no_config_map_can_have_is_refused_and_its_pool_file_still_read(
    key: str,
) -> None:
    found, problems = sources(f"kind: ConfigMap\ndata:\n  {key}: x\n")
    assert [source.name for source in found] == [key]
    (problem,) = problems
    assert problem == (
        f"map.yaml:3:3: data.{key}: no ConfigMap can have this key; use up to 253 letters, digits,"
        " -, _ and ."
    )


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
def test_a_wrong_manifest_is_reported(text: str, problem: str) -> None:
    found, problems = sources(text)
    assert found == ()
    assert problems[0] == problem


def test_a_key_that_stands_twice_in_a_manifest_is_reported_and_its_pool_files_still_read() -> None:
    found, problems = sources(MANIFEST + "kind: ConfigMap\n")
    assert len(found) == 2
    assert problems == [
        "map.yaml:12:1: kind: this key stands here twice, first in line 2; keep one of the two"
    ]
