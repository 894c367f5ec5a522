"""CPU-Pooler's own samples, unedited: what they mean, and which recorded machines take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.config import pool_rules, pool_selection, poolconfig
from cpupool.core.errors import ConfigError, Severity, errors_in
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.host.sysfs import open_topology
from tests import testdata

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.config.pool_file import PoolFile

SAMPLES = (
    "cpu-pooler-config.yaml",
    "multiThreadExclusive.yaml",
    "singleThreadExclusive.yaml",
    "testpoolconfig2.yaml",
)
ONE_THREAD_A_CORE = {
    "gb10-arm-20",
    "kunpeng-128",
    "opteron-48-sparse",
    "riscv-sg2042-64",
}
EIGHT_CPUS = {"arm-phone-3clusters", "cpuless-nodes-11", "s390-lpar"}
"""These have CPUs 0-7 without siblings; no default pool is left there beside testpoolconfig2."""
SIBLINGS_FAR_APART = {"epyc-7451-2s48c", "xeon-2s-32", "xeon-pmem-80", "xeon-x7550-4s64"}
"""The siblings of CPUs 0-7 lie beyond them, and no pool lists one."""
SOME_OFFLINE = {"opteron-16-cpu4-offline", "xeon-offline-cpu0-node0"}
"""Pools list CPUs that are offline: a warning."""
SMALL = ONE_THREAD_A_CORE | EIGHT_CPUS | SIBLINGS_FAR_APART | SOME_OFFLINE | {"ibm-x3950-96"}
CAAS = {
    "epyc-7451-2s48c",
    "ibm-x3950-96",
    "kunpeng-128",
    "opteron-48-sparse",
    "riscv-sg2042-64",
    "xeon-pmem-80",
}
"""These have CPUs 0-39, and no sibling of 21-39 among 0-20."""
TAKEN_BY = {
    "poolconfig-controller.yaml": SMALL,
    "poolconfig-dpdk.yaml": SMALL,
    "testpoolconfig2.yaml": SMALL,
    "multiThreadExclusive.yaml": CAAS,
    "singleThreadExclusive.yaml": CAAS,
}


@pytest.fixture(scope="module")
def samples() -> Path:
    return testdata.folder() / "cpu-pooler"


def read(path: Path) -> list[PoolFile]:
    found = poolconfig.sources(path.name, path.read_bytes(), [])
    return [poolconfig.parse(one.name, one.text, Names(), one.origin) for one in found]


def test_the_sample_configmap_holds_two_files_for_two_kinds_of_nodes(samples: Path) -> None:
    controller, dpdk = read(samples / "cpu-pooler-config.yaml")
    assert controller.name == "poolconfig-controller.yaml"
    assert controller.node_selector == {"nodeType": "controller"}
    assert controller.pools == NodePools.of(
        Pool.named("exclusive-pool", "4,5"),
        Pool.named("exclusive-pool-2", "2,3", multi_threaded=True),
        Pool.named("shared-pool", "1"),
        Pool.named("default", "0"),
    )
    assert dpdk.name == "poolconfig-dpdk.yaml"
    assert dpdk.pools == NodePools.of(
        Pool.named("exclusive-pool", "2-7"),
        Pool.named("shared-pool", "1"),
        Pool.named("default", "0"),
    )
    assert str(dpdk.locate("pools.exclusive-pool.cpus")) == "cpu-pooler-config.yaml:24:16"
    assert pool_selection.rivals([controller, dpdk]) == ()
    assert pool_selection.select([controller, dpdk], {"nodeType": "dpdk"}) == dpdk
    assert pool_selection.select([controller, dpdk], {"nodeType": "storage"}) is None


@pytest.mark.parametrize("policy", ["singleThread", "multiThread"])
def test_the_sample_files_of_both_policies_are_read(samples: Path, policy: str) -> None:
    (file,) = read(samples / f"{policy}Exclusive.yaml")
    multi_threaded = policy == "multiThread"
    assert file.pools == NodePools.of(
        Pool.named("default", "0-8"),
        Pool.named("exclusive_caas", "21-39", multi_threaded=multi_threaded),
        Pool.named("shared_caas", "9-20"),
    )
    assert file.node_selector == {"nodename": "caas_master1"}


def test_the_sample_file_without_a_default_pool_is_read(samples: Path) -> None:
    (file,) = read(samples / "testpoolconfig2.yaml")
    assert file.pools == NodePools.of(
        Pool.named("shared_caas", "0-3"), Pool.named("exclusive_caas", "4-7")
    )


def test_the_sample_file_with_a_cpu_in_two_pools_is_refused_for_exactly_that(samples: Path) -> None:
    # testpoolconfig1.yaml lists CPU 12 in exclusive_caas (3-8,12-14,16) and in shared_caas
    # (9-12,15,17). CPU-Pooler takes it, and a container that owns CPU 12 shares it with others.
    with pytest.raises(ConfigError) as raised:
        read(samples / "testpoolconfig1.yaml")
    assert str(raised.value) == (
        "testpoolconfig1.yaml:8:11: pools.exclusive_caas.cpus: CPUs 12 are also in shared_caas; an"
        " exclusive CPU may be in one pool only: remove them from one of the two"
    )


def test_the_samples_for_one_node_cannot_be_used_together(samples: Path) -> None:
    files = [file for name in SAMPLES[1:] for file in read(samples / name)]
    assert len(pool_selection.rivals(files)) == 3
    with pytest.raises(ConfigError, match="both match this node"):
        pool_selection.select(files, {"nodename": "caas_master1"})


def test_each_sample_is_taken_by_the_machines_that_have_its_cores(samples: Path) -> None:
    files = [file for name in SAMPLES for file in read(samples / name)]
    taken: dict[str, set[str]] = {file.name: set() for file in files}
    for archive in sorted((samples.parent / "topologies").glob("*.tar.gz")):
        topology = open_topology(str(archive))
        for file in files:
            if not errors_in(pool_rules.validate(file.pools, topology)):
                taken[file.name].add(archive.name.removesuffix(".tar.gz"))
    assert taken == TAKEN_BY


@pytest.mark.parametrize(
    ("machine", "sample", "reason"),
    [
        pytest.param(
            "xeon-2s-32",
            "multiThreadExclusive.yaml",
            "this machine has no CPUs 32-39; it has 0-31",
            id="too few CPUs",
        ),
        pytest.param(
            "xeon-x7550-4s64",
            "singleThreadExclusive.yaml",
            "CPUs 0-7 in default are siblings of its CPUs 32-39 on the same cores",
            id="siblings in the default pool",
        ),
        pytest.param(
            "power7-64",
            "testpoolconfig2.yaml",
            "CPUs 4-7 are threads of one core, and an exclusive pool lists cores",
            id="four threads of one core",
        ),
        pytest.param(
            "sparc64-sparse",
            "testpoolconfig2.yaml",
            "this machine has no CPUs 4-5; it has 6-7,10-11,14-15",
            id="CPU ids with gaps",
        ),
    ],
)
def test_a_machine_refuses_a_sample_for_a_reason(
    samples: Path, machine: str, sample: str, reason: str
) -> None:
    (file,) = read(samples / sample)
    topology = open_topology(str(samples.parent / "topologies" / f"{machine}.tar.gz"))
    problems = errors_in(pool_rules.validate(file.pools, topology))
    assert reason in [problem.what for problem in problems]


def test_a_machine_with_offline_cpus_takes_a_sample_with_a_warning(samples: Path) -> None:
    (file,) = read(samples / "testpoolconfig2.yaml")
    archive = samples.parent / "topologies" / "opteron-16-cpu4-offline.tar.gz"
    (problem,) = pool_rules.validate(file.pools, open_topology(str(archive)))
    assert (problem.what, problem.severity) == ("CPUs 4 are offline", Severity.WARNING)
