"""Every string that users, the kubelet and applications see of cpupool."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from cpupool.core.requests import Resource, ResourceKind

DEFAULT_DOMAIN: Final = "nokia.k8s.io"
EXCLUSIVE_CPUS: Final = "EXCLUSIVE_CPUS"
SHARED_CPUS: Final = "SHARED_CPUS"
CPU_POOLS: Final = "CPU_POOLS"
CONTAINER_NAME: Final = "CONTAINER_NAME"
"""Set beside the process starter, as by CPU-Pooler, whose applications may read it."""
START_TIMEOUT: Final = "CPUPOOL_START_TIMEOUT"
"""For pod authors: how many seconds the process starter waits for the container's CPUs."""

EXCLUSIVE_PREFIX: Final = "exclusive"
SHARED_PREFIX: Final = "shared"
"""How the names of the pools begin that are resources; any other name is the default pool's."""
_DEFAULT_POOL: Final = "default"
_ALIKE: Final = 0.75
"""The least likeness of a mistyped prefix, from 0 to 1 (`difflib.SequenceMatcher.ratio`)."""

ENABLE_SHARED_CPUS: Final = Resource("enable-shared-cpus", ResourceKind.BESIDE)
"""The part of OpenShift's resource after the slash: one device lets one container use a node's
shared pool beside CPUs of its own."""
OPENSHIFT_DOMAIN: Final = "workload.openshift.io"
OPENSHIFT_SHARED_CPUS: Final = "OPENSHIFT_SHARED_CPUS"
OPENSHIFT_ISOLATED_CPUS: Final = "OPENSHIFT_ISOLATED_CPUS"
LOAD_BALANCING: Final = "cpu-load-balancing"
CRIO_LOAD_BALANCING: Final = "cpu-load-balancing.crio.io"
DISABLE: Final = "disable"
"""The value of an annotation by which a pod asks that the load of its CPUs is not balanced."""
CRIO_SHARED_CPUS: Final = "cpu-shared.crio.io"
"""Annotation, with `/<container>`, that tells CRI-O's users of a container with shared CPUs."""
MIXED_CPUS_ALLOWED: Final = "workload.mixedcpus.openshift.io/allowed"
"""Annotation of a namespace whose pods may ask for OpenShift's resource."""
KUBELET_CPUS: Final = Resource("kubelet/cpu", ResourceKind.KUBELET)
"""The CPUs that the kubelet's static CPU manager gives out itself. No pool can have this name."""
POLICY_CPUS: Final = Resource("policy/cpu", ResourceKind.POLICY)
"""The CPUs that the node's CPU manager policy gives out. No pool can have this name."""

STARTER: Final = "/opt/cpupool/process-starter"
"""The process starter, as a container sees it."""

POOL_FILE_PREFIX: Final = "poolconfig-"
"""Of the keys of the ConfigMap, those that begin so are pool files, as for CPU-Pooler."""
POOL_FILE_SUFFIX: Final = ".yaml"
"""What pool files end with that cpupool writes; it reads them without as well."""

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
        """Name the extended resource of a pool: `nokia.k8s.io/<pool>`, but for OpenShift's own."""
        return f"{OPENSHIFT_DOMAIN if pool == ENABLE_SHARED_CPUS else self.domain}/{pool}"

    def pool_of(self, resource: str) -> Resource | None:
        """Return what is behind an extended resource, or None for one of another device plugin.

        Others are in the same domain, as `nokia.k8s.io/sriov_vfio_ens1f0`.
        """
        _, _, name = resource.partition("/")
        found = resource_named(name)
        return found if found is not None and resource == self.resource(found) else None

    def is_doubtful(self, resource: str) -> bool:
        """Return whether a resource is no pool's, and its name suggests that a pool is meant."""
        domain, _, name = resource.partition("/")
        if domain != self.domain or self.pool_of(resource) is not None:
            return False
        return name == _DEFAULT_POOL or meant_prefix(name) is not None

    @property
    def processes(self) -> str:
        """Name the annotation by which a pod lists the processes to start: `nokia.k8s.io/cpus`."""
        return f"{self.domain}/cpus"

    @property
    def load_balancing(self) -> str:
        """Name our annotation for load balancing: `nokia.k8s.io/cpu-load-balancing`."""
        return f"{self.domain}/{LOAD_BALANCING}"

    def allocated(self, pool: str) -> str:
        """Name the annotation by which an allocation is recognised on the container."""
        return f"{self.domain}/allocated.{pool}"

    def allocated_pool(self, annotation: str) -> Resource | None:
        """Return what such an annotation is about, or None for any other."""
        domain, _, name = annotation.partition("/allocated.")
        return resource_named(name) if domain == self.domain else None


def resource_named(name: str) -> Resource | None:
    """Return the resource of a pool by its name, or OpenShift's; None for any other name.

    The prefix of a pool's name is its kind, as for CPU-Pooler.
    """
    if name == ENABLE_SHARED_CPUS:
        return ENABLE_SHARED_CPUS
    if name.startswith(EXCLUSIVE_PREFIX):
        return Resource(name, ResourceKind.EXCLUSIVE)
    if name.startswith(SHARED_PREFIX):
        return Resource(name, ResourceKind.SHARED)
    return None


def meant_prefix(name: str) -> str | None:
    """Return the prefix that a name has but for a typing error, as `exlusive-pool`; or None."""
    word = re.split("[-_.]", name.lower(), maxsplit=1)[0]
    near = difflib.get_close_matches(word, (EXCLUSIVE_PREFIX, SHARED_PREFIX), 1, _ALIKE)
    return near[0] if near else None


def pool_variable(pool: str) -> str:
    """Name the environment variable of one pool: `CPUPOOL_CPUS_<POOL>`, but for OpenShift's own."""
    if pool == ENABLE_SHARED_CPUS:
        return OPENSHIFT_SHARED_CPUS
    return "CPUPOOL_CPUS_" + pool.upper().replace("-", "_").replace(".", "_")


def is_reserved_variable(name: str) -> bool:
    """Tell whether a variable is for cpupool alone to set, whatever its value."""
    own = name in (EXCLUSIVE_CPUS, SHARED_CPUS) or name.startswith("CPUPOOL_")
    return own and name != START_TIMEOUT


def shared_pool_folder(pool: str) -> str:
    """Name the folder in which a container finds the CPUs of a shared pool as they are now."""
    return f"/run/cpupool/{pool}"
