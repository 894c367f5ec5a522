"""Every name of cpupool that users, the kubelet and applications see."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from cpupool.core.requests import Resource, ResourceKind

DEFAULT_DOMAIN: Final = "nokia.k8s.io"
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a namespace, as Kubernetes has it (k8s.io/apimachinery/pkg/util/validation)."""
EXCLUSIVE_CPUS: Final = "EXCLUSIVE_CPUS"
SHARED_CPUS: Final = "SHARED_CPUS"
CPU_POOLS: Final = "CPU_POOLS"
CONTAINER_NAME: Final = "CONTAINER_NAME"
"""A variable set with the process starter, as by CPU-Pooler, whose applications may read it."""
START_TIMEOUT: Final = "CPUPOOL_START_TIMEOUT"
"""A variable for pod authors: seconds that the process starter waits for the container's CPUs."""

EXCLUSIVE_PREFIX: Final = "exclusive"
SHARED_PREFIX: Final = "shared"
"""The prefixes of pools that are resources; any other name is the default pool's."""
_DEFAULT_POOL: Final = "default"
_ALIKE: Final = 0.75
"""The least likeness of a mistyped prefix, from 0 to 1 (`difflib.SequenceMatcher.ratio`)."""
_ALIKE_DOMAINS: Final = 0.85
"""The same for a domain: many vendors have one that ends in `.k8s.io`."""
_ALIKE_NAMES: Final = 0.85
"""The same for the name of an annotation in our domain."""

ENABLE_SHARED_CPUS: Final = Resource("enable-shared-cpus", ResourceKind.ADDITIONAL)
"""The part of OpenShift's resource after the slash: one device lets one container use a node's
shared pool in addition to CPUs of its own."""
OPENSHIFT_DOMAIN: Final = "workload.openshift.io"
OPENSHIFT_SHARED_CPUS: Final = "OPENSHIFT_SHARED_CPUS"
OPENSHIFT_ISOLATED_CPUS: Final = "OPENSHIFT_ISOLATED_CPUS"
LOAD_BALANCING: Final = "cpu-load-balancing"
CRIO_LOAD_BALANCING: Final = "cpu-load-balancing.crio.io"
DISABLE: Final = "disable"
"""The annotation's value that switches load balancing off for a pod's CPUs."""
NOTICE: Final = "cpu-notice-seconds"
MOVES: Final = "cpu-moves"
CRIO_SHARED_CPUS: Final = "cpu-shared.crio.io"
"""Annotation, with `/<container>`, that marks a container with shared CPUs for CRI-O's users."""
MIXED_CPUS_ALLOWED: Final = "workload.mixedcpus.openshift.io/allowed"
"""Annotation of a namespace whose pods may request OpenShift's resource."""
KUBELET_CPUS: Final = Resource("kubelet/cpu", ResourceKind.KUBELET)
"""The CPUs that the kubelet's static CPU manager gives out. No pool can have this name."""
POLICY_CPUS: Final = Resource("policy/cpu", ResourceKind.POLICY)
"""The CPUs that the node's CPU manager policy gives out. No pool can have this name."""

STARTER: Final = "/opt/cpupool/process-starter"
"""The process starter's path in a container."""

NODE_CRITICAL: Final = "system-node-critical"
"""The priority class of pods that a node needs: they wait neither for CPUs nor for the agent."""
NRI_PLUGIN: Final = "cpupool"
"""The agent's name among the plugins of the container runtime."""
REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
"""Annotation of a pod: a list of NRI plugins without which the runtime creates no container of it.
The suffixes `/pod` and `/container.<name>` restrict it (containerd/nri: pkg/plugin)."""

POOL_FILE_PREFIX: Final = "poolconfig-"
"""Keys of the ConfigMap with this prefix are pool files; CPU-Pooler has the same prefix."""
POOL_FILE_SUFFIX: Final = ".yaml"
"""The suffix of pool files that cpupool writes; it reads files without the suffix, too."""

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
        """Return the extended resource of a pool: `nokia.k8s.io/<pool>`, except OpenShift's."""
        return f"{OPENSHIFT_DOMAIN if pool == ENABLE_SHARED_CPUS else self.domain}/{pool}"

    def pool_of(self, resource: str) -> Resource | None:
        """Return the pool's reference of an extended resource; None for another device plugin's.

        Other plugins use the same domain, as `nokia.k8s.io/sriov_vfio_ens1f0`.
        """
        _, _, name = resource.partition("/")
        found = resource_named(name)
        return found if found is not None and resource == self.resource(found) else None

    def is_doubtful(self, resource: str) -> bool:
        """Return whether a resource is not a pool's while its name suggests a pool."""
        domain, _, name = resource.partition("/")
        if domain != self.domain or self.pool_of(resource) is not None:
            return bool(self.meant(resource))
        return name == _DEFAULT_POOL or meant_prefix(name) is not None

    def meant(self, resource: str) -> str:
        """Return the resource of a pool that another one names, except for a typing error.

        The error is in the domain, as in `nokia.k8.io/exclusive_a`. Empty for any other resource.
        """
        typed, _, name = resource.partition("/")
        pool = resource_named(name)
        if pool is None or (meant := self.resource(pool)) == resource:
            return ""
        domain, _, _ = meant.partition("/")
        return meant if _is_nearly(typed, domain) else ""

    def meant_annotation(self, key: str) -> str:
        """Return the annotation of a pod's author that a key names, except for a typing error.

        The error is in the domain, as in `nokia.k8s.oi/cpus`, or in the name; or a name of several
        words, as `cpu-moves`, has no domain or a foreign one. Empty for any other key.
        """
        typed, _, name = key.rpartition("/")
        of_authors = (
            *(self.processes, self.load_balancing, self.split),
            *(self.memory_migrates, self.requests, self.notice, self.moves),
        )
        if typed == self.domain:
            by_name = {known.rpartition("/")[2]: known for known in of_authors}
            near = difflib.get_close_matches(name.lower(), by_name, 1, _ALIKE_NAMES)
            return by_name[near[0]] if near and key not in of_authors else ""
        meant = f"{self.domain}/{name}"
        # A single word, as `cpus`, may be another program's.
        is_meant = "-" in name or _is_nearly(typed, self.domain)
        return meant if meant in of_authors and is_meant else ""

    @property
    def processes(self) -> str:
        """The annotation with the processes that a pod starts: `nokia.k8s.io/cpus`."""
        return f"{self.domain}/cpus"

    @property
    def load_balancing(self) -> str:
        """The annotation for load balancing in our domain: `nokia.k8s.io/cpu-load-balancing`."""
        return f"{self.domain}/{LOAD_BALANCING}"

    @property
    def split(self) -> str:
        """The annotation by which the containers of a pod do not share the pod's CPUs.

        With `nokia.k8s.io/cpus-per-container: "true"` each has a part of its own size.
        """
        return f"{self.domain}/cpus-per-container"

    @property
    def chosen(self) -> str:
        """The annotation with the CPUs that the CPU manager policy chose for a container.

        cpupool writes it through NRI, on the container. On a pod it has no meaning.
        """
        return f"{self.domain}/cpus-chosen"

    @property
    def answered(self) -> str:
        """The annotation with the CPUs that a plugin named for a container alone.

        cpupool writes it as the one of `chosen`. Unlike a choice, an answer may change later.
        """
        return f"{self.domain}/cpus-answered"

    @property
    def memory_migrates(self) -> str:
        """The annotation by which the memory of a pod's running containers may be migrated."""
        return f"{self.domain}/memory-migrates"

    @property
    def notice(self) -> str:
        """The annotation with the seconds that a pod's containers know before they lose CPUs."""
        return f"{self.domain}/{NOTICE}"

    @property
    def moves(self) -> str:
        """The annotation that says how far a running container's CPUs may move: `CPUMoves`."""
        return f"{self.domain}/{MOVES}"

    @property
    def requests(self) -> str:
        """The annotation with the requests of a pod's main container to plugins: a JSON object."""
        return f"{self.domain}/requests"

    @property
    def exclusive(self) -> str:
        """The annotation by which a plugin's answer makes its CPUs the container's own."""
        return f"{self.domain}/cpus-exclusive"

    def allocated(self, pool: str) -> str:
        """Return the annotation that records an allocation on the container."""
        return f"{self.domain}/allocated.{pool}"

    def allocated_pool(self, annotation: str) -> Resource | None:
        """Return the resource of such an annotation, or None for any other annotation."""
        domain, _, name = annotation.partition("/allocated.")
        return resource_named(name) if domain == self.domain else None


def resource_named(name: str) -> Resource | None:
    """Return the resource of a pool's name, or OpenShift's resource; None for any other name.

    As in CPU-Pooler, the prefix of a pool's name says its kind.
    """
    if name == ENABLE_SHARED_CPUS:
        return ENABLE_SHARED_CPUS
    if name.startswith(EXCLUSIVE_PREFIX):
        return Resource(name, ResourceKind.EXCLUSIVE)
    if name.startswith(SHARED_PREFIX):
        return Resource(name, ResourceKind.SHARED)
    return None


def _is_nearly(typed: str, domain: str) -> bool:
    return bool(difflib.get_close_matches(typed, (domain,), 1, _ALIKE_DOMAINS))


def meant_prefix(name: str) -> str | None:
    """Return the prefix that a name has except for a typing error, as `exlusive-pool`; or None."""
    word = re.split("[-_.]", name.lower(), maxsplit=1)[0]
    near = difflib.get_close_matches(word, (EXCLUSIVE_PREFIX, SHARED_PREFIX), 1, _ALIKE)
    return near[0] if near else None


def pool_variable(pool: str) -> str:
    """Return the environment variable of a pool: `CPUPOOL_CPUS_<POOL>`, except OpenShift's."""
    if pool == ENABLE_SHARED_CPUS:
        return OPENSHIFT_SHARED_CPUS
    return "CPUPOOL_CPUS_" + pool.upper().replace("-", "_").replace(".", "_")


def is_reserved_variable(name: str) -> bool:
    """Return whether only cpupool may set a variable, whatever its value."""
    own = name in (EXCLUSIVE_CPUS, SHARED_CPUS) or name.startswith("CPUPOOL_")
    return own and name != START_TIMEOUT


OWN_FOLDER: Final = "/run/cpupool/self"
"""The folder in which a container finds the current CPUs of its own. No pool has this name."""


def shared_pool_folder(pool: str) -> str:
    """Return the folder in which a container finds the current CPUs of a shared pool."""
    return f"/run/cpupool/{pool}"
