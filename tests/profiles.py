"""Performance profiles of tests, and what cpupool makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpupool.config import performance_profile, poolconfig
from cpupool.core.errors import ConfigError
from cpupool.core.names import Names
from tests.machines import Machine

if TYPE_CHECKING:
    from cpupool.config.performance_profile import PerformanceProfile
    from cpupool.config.pool_file import PoolFile
    from cpupool.core.pools import NodePools
    from cpupool.core.topology import CPUTopology

EXAMPLE = """\
apiVersion: performance.openshift.io/v2
kind: PerformanceProfile
metadata:
  name: example-performance-profile
spec:
  cpu:
    reserved: "0-1"
    isolated: "4-8"
    shared: "2-3"
  hugepages:
    defaultHugepagesSize: "1G"
    pages:
      - size: "1G"
        count: 2
        node: 0
  realTimeKernel:
    enabled: true
  workloadHints:
    mixedCpus: true
  nodeSelector:
    node-role.kubernetes.io/performance: "test"
"""
VM = Machine(cores=4, threads=2, adjacent=True)


def profile_of(text: str) -> PerformanceProfile:
    return performance_profile.parse("p.yaml", text)


def written(**spec: object) -> str:
    """Write a profile with these parts of its spec."""
    profile = {
        "apiVersion": "performance.openshift.io/v2",
        "kind": "PerformanceProfile",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    return json.dumps(profile)


def with_lists(reserved: str, isolated: str, shared: str = "", *, mixed: bool = True) -> str:
    cpu = {"reserved": reserved, "isolated": isolated, "shared": shared}
    hints = {"mixedCpus": mixed}
    return written(cpu=cpu, workloadHints=hints, nodeSelector={"a/b": ""})


def file_of(profile: PerformanceProfile, topology: CPUTopology | None = None) -> PoolFile:
    """Give the pool file, as a node reads it."""
    text = performance_profile.pool_file(profile, topology)
    return poolconfig.parse("poolconfig-p.yaml", text, Names())


def pools_in(profile: PerformanceProfile, topology: CPUTopology | None = None) -> NodePools:
    return file_of(profile, topology).pools


def refusals(text: str, topology: CPUTopology | None = None) -> list[str]:
    """Give the lines in which a profile is refused, or what is to be known of it."""
    try:
        return [str(one) for one in performance_profile.check(profile_of(text), topology)]
    except ConfigError as error:
        return [str(one) for one in error.problems]
