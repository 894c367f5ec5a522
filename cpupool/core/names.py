"""Every string that users, the kubelet and applications see of cpupool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_DOMAIN: Final = "nokia.k8s.io"
EXCLUSIVE_CPUS: Final = "EXCLUSIVE_CPUS"
SHARED_CPUS: Final = "SHARED_CPUS"
POOL_FILE_PREFIX: Final = "poolconfig-"
POOL_FILE_SUFFIX: Final = ".yaml"

STATIC_POD_HASH: Final = "kubernetes.io/config.hash"
STATIC_POD_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotations of the mirror of a static pod; the kubelet names its cgroup after the hash
(kubernetes: pkg/kubelet/types/pod_update.go)."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names that carry the resource domain.

    Attributes:
        domain: the part before the slash, `nokia.k8s.io` where nothing else is set.
    """

    domain: str = DEFAULT_DOMAIN

    def resource(self, pool: str) -> str:
        """Name the extended resource of a pool: `nokia.k8s.io/<pool>`."""
        return f"{self.domain}/{pool}"

    def pool_of(self, resource: str) -> str | None:
        """Name the pool behind a resource, or None for other people's resources."""
        domain, _, pool = resource.partition("/")
        return pool if domain == self.domain and pool else None

    def allocated(self, pool: str) -> str:
        """Name the annotation by which an allocation is recognised on the container."""
        return f"{self.domain}/allocated.{pool}"


def pool_variable(pool: str) -> str:
    """Name the environment variable of one pool: `CPUPOOL_CPUS_<POOL>`."""
    return "CPUPOOL_CPUS_" + pool.upper().replace("-", "_").replace(".", "_")
