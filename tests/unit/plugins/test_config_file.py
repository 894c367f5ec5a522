from __future__ import annotations

import pytest

from cpupool.config.document import Origin
from cpupool.config.poolconfig import Source
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.plugins.config import Aims, Neighbours, PluginConfig, PoolSize, Role
from cpupool.plugins.config_file import parse, read_file, refuse_unfit, sources
from cpupool.plugins.nics import NIC

WHOLE = """
reserved: "0-1,40-41"
reservedMemory: 500Mi
pools:
  online: {cpus: 76}
  offline: {weight: 2}
  rest:
  by-load: {minCpus: 8}
load: {usePercent: 60, waitingPercent: 20, mostUp: 8, mostDown: 4, pauseSeconds: 120}
roles:
  ETL: {pool: offline}
  storage: {numaNode: same-role}
  own: {numaNode: alone}
  beside: {numaNode: shared}
nics:
  eth0: {numaNode: 0, ipv4: 10.0.0.2}
  eth1: {ipv6: "fdbd:dc05:3:155:0::20", netns: /var/run/netns/ns1, mbits: 25000}
"""


def test_the_file_is_read() -> None:
    assert parse("f.yaml", WHOLE) == PluginConfig(
        CPUSet.parse("0-1,40-41"),
        {
            "online": PoolSize(76),
            "offline": PoolSize(None, 2),
            "rest": PoolSize(),
            "by-load": PoolSize(at_least=8),
        },
        {
            "ETL": Role("offline"),
            "storage": Role("", Neighbours.SAME_ROLE),
            "own": Role("", Neighbours.NONE),
            "beside": Role("", Neighbours.ANY),
        },
        524288000,
        (
            NIC("eth0", 0, ipv4="10.0.0.2"),
            NIC("eth1", None, "fdbd:dc05:3:155::20", "", "/var/run/netns/ns1", 25000),
        ),
        Aims(0.6, 0.2, 8, 4, 120),
    )
    assert parse("f.yaml", "") == PluginConfig()
    assert parse("f.yaml", "load: {mostDown: 1}").aims == Aims(most_down=1)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "this must be a map"),
        ("pool: {}", "did you mean pools"),
        ("reserved: 5-", "CPU list|neither a CPU"),
        ("reservedMemory: -1", "reservedMemory: '-1' are no bytes"),
        ("reservedMemory: 500m", "reservedMemory: '500m' are no bytes"),
        ("reservedMemory: 1MB", "reservedMemory: .+write bytes, as 500Mi"),
        ("pools: {a: 5}", "pools.a: this must be a map"),
        ("pools: {a: {cpus: 0}}", "pools.a.cpus: '0' is no whole number from 1"),
        ("pools: {a: {cpus: []}}", "pools.a.cpus: this must be text"),
        ("pools: {a: {cpus: 1, weight: 1}}", "pools.a: a pool has a number of CPUs or a weight"),
        ("pools: {a: {minCpus: 2, weight: 1}}", "pools.a: .+keep one of cpus, weight, minCpus"),
        ("pools: {a: {minCpus: 0}}", "pools.a.minCpus: '0' is no whole number from 1"),
        ("load: 5", "load: this must be a map"),
        ("load: {usePercents: 5}", "load.usePercents: .+did you mean usePercent"),
        ("load: {usePercent: 96}", "load.usePercent: '96' is too much; write .+ from 1 to 95"),
        (
            "load: {waitingPercent: 0.1}",
            "waitingPercent: '0.1' is no whole number from 1; write .+ 1 to 95",
        ),
        ("load: {mostDown: 0}", "load.mostDown: '0' is no whole number from 1"),
        ("load: {pauseSeconds: 3601}", "pauseSeconds: '3601' is too much; .+ 1 to 3600"),
        ("nics: {a: 5}", "nics.a: this must be a map"),
        ("nics: {a: {}}", "nics.a: a NIC has an address"),
        ("nics: {a: {ipv6: 10.0.0.2}}", "nics.a.ipv6: '10.0.0.2' is no such address"),
        ("nics: {a: {ipv4: 10.0.0.2/8}}", "nics.a.ipv4: '10.0.0.2/8' is no such address"),
        ("nics: {a: {ipv4: 10.0.0.2, numaNode: x}}", "nics.a.numaNode: 'x' is no NUMA node"),
        ("nics: {a: {ipv4: 10.0.0.2, mbits: 0}}", "nics.a.mbits: '0' is no whole number from 1"),
        ("pools: {share-NUMA0: {}}", "'share-NUMA0' is the name of a pool on a NUMA node"),
        ("roles: {a: 5}", "roles.a: this must be a map"),
        ("roles: {a: {pool: b}}", "roles.a.pool: 'b' is no pool of this file"),
        ("roles: {a: {}}", "roles.a: a role has a pool or a NUMA node"),
        ("pools: {p: }\nroles: {a: {pool: p, numaNode: alone}}", "a pool or a NUMA node"),
        ("roles: {a: {numaNode: aloan}}", "did you mean alone"),
    ],
)
def test_a_mistake_is_named(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse("f.yaml", text)


@pytest.mark.parametrize(
    ("text", "online", "what"),
    [
        ("reserved: 8", "0-7", "CPUs 8 are not online"),
        ("reserved: 0-7", "0-7", "0 CPUs are left for 0 pools"),
        ("reserved: 0-6\npools: {a: , b: }", "0-7", "1 CPUs are left for 2 pools"),
        ("pools: {a: {minCpus: 8}, b: }", "0-7", "8 CPUs .+ 2 pools, which have 9 at least"),
    ],
)
def test_a_file_that_does_not_fit_the_machine_is_refused(text: str, online: str, what: str) -> None:
    config = parse("f.yaml", text)
    with pytest.raises(ConfigError, match=what):
        refuse_unfit(config, CPUSet.parse(online))
    refuse_unfit(config, CPUSet.parse("0-15"))


def test_what_does_not_fit_the_machine_has_its_place() -> None:
    def unfit(text: str, online: str) -> list[str]:
        file = read_file(Source.of("f.yaml", text))
        return [str(problem) for problem in file.unfit(CPUSet.parse(online))]

    few = "2 pools, which have 9 at least; reserve fewer CPUs"
    both = 'pools: {a: {minCpus: 8}, b: }\nreserved: "0-6,8"\n'
    assert unfit(both, "0-7") == [
        "f.yaml:2:11: reserved: CPUs 8 are not online; reserve other CPUs",
        f"f.yaml:2:11: reserved: 1 CPUs are left for {few}",
    ]
    without = "pools: {a: {minCpus: 8}, b: }\n"
    assert unfit(without, "0-7") == [f"f.yaml:1:1: reserved: 8 CPUs are left for {few}"]
    assert unfit(without, "0-8") == []


@pytest.mark.parametrize(
    ("text", "of_plugins"),
    [
        pytest.param(WHOLE, True, id="a whole file"),
        pytest.param("pools: {online: {weight: 1}}", True, id="a weight"),
        pytest.param("pools: {exclusive_a: {minCpus: 1}}", True, id="a size by load"),
        pytest.param("roles: {a: {numaNode: alone}}", True, id="roles"),
        pytest.param("reserved: 0", True, id="reserved CPUs alone"),
        pytest.param("reserved: 0\npools: {online: {cpus: 4}}", True, id="pools of no kind"),
        pytest.param("reserved: 0\npools: {exclusive_a: {cpus: 4}}", False, id="pools of a kind"),
        pytest.param("pools: {online: {cpus: 4}}", False, id="a number, or a list"),
        pytest.param("nodeSelector: {a: b}\nroles: {}", False, id="as many keys of a pool file"),
        pytest.param(
            "nodeSelector: {a: b}\nroles: {}\nnics: {}", True, id="fewer keys of a pool file"
        ),
        pytest.param("reserved: 0\ncpuManager: {policy: static}", False, id="a CPU manager"),
        pytest.param("pools: 5", False, id="pools that are no map"),
        pytest.param("[]", False, id="no map"),
        pytest.param("", False, id="empty"),
        pytest.param("pools: ]", False, id="no YAML"),
        pytest.param("load: {}\n---\nload: {}\n", False, id="two files in one"),
    ],
)
def test_a_file_is_known_by_its_keys(text: str, of_plugins: bool) -> None:
    found = sources("f.yaml", text)

    assert found == ((Source("f.yaml", text, Origin("f.yaml")),) if of_plugins else ())


IN_CLUSTER = """\
kind: List
items:
- kind: ConfigMap
  data:
    other.yaml: "load: {}"
    app.yaml: "a: b"
    broken.yaml: "load: ]"
    poolconfig-a.yaml: "pools: {online: {weight: 1}}"
    number: 5
- kind: Secret
  data: {mine.yaml: "load: {}"}
- 5
---
kind: ConfigMap
data: {resource-plugins.yaml: "pools: ]"}
---
kind: ConfigMap
data: {resource-plugins.yaml: "a: b"}
---
kind: Service
"""


def test_in_config_maps_a_file_is_known_by_its_keys_or_as_our_daemon_set_names_it() -> None:
    found = [(source.name, source.text) for source in sources("all.yaml", IN_CLUSTER)]

    assert found == [
        ("other.yaml", "load: {}"),
        ("resource-plugins.yaml", "pools: ]"),
        ("resource-plugins.yaml", "a: b"),
    ]


def test_a_problem_in_a_config_map_has_its_place_there() -> None:
    text = 'kind: ConfigMap\ndata:\n  mine.yaml: |\n    load: {}\n    reserved: "0,9"\n'

    (source,) = sources("all.yaml", text)

    (problem,) = read_file(source).unfit(CPUSet.parse("0-7"))
    assert str(problem.location) == "all.yaml:5:15"
