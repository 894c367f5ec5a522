from __future__ import annotations

import pytest

from cpupool.config.resource_plugins import parse, refuse_unfit
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.core.nics import NIC
from cpupool.core.plugin_config import Aims, Neighbours, PluginConfig, PoolSize, Role

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
