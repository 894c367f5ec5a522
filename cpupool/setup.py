"""What the agent is made with: its settings, and its cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.config.settings import AgentSettings
from cpupool.core.names import Names
from cpupool.core.node_topology import Publishing
from cpupool.manager.ports import NodeLabels, PodSource, Writer
from cpupool.policies.built_in import BUILT_IN
from cpupool.roles.nri_answers import MissingFacts
from cpupool.roles.nri_wait import WaitRules
from cpupool.roles.resource_manager import RECONCILE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cpupool.core.resource_plugins import ServedAs
    from cpupool.core.workloads import Node
    from cpupool.manager.ports import (
        ConfigMapSource,
        EventSink,
        NodeTopologySink,
        PodAnnotationSink,
        PodStatusSink,
    )
    from cpupool.policies.base import CPUManagerPolicies
    from cpupool.roles.node_resources import NodeResourceSink
    from cpupool.runtime.nri_connection import Launch
    from cpupool.supervisor import Loop

SWEEP_INTERVAL_S: Final = AgentSettings().sweep_interval_s


@dataclass(frozen=True, slots=True)
class Setup:
    """What the agent is made with, from its settings and its surroundings.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files.
        names: the public strings, with the resource domain.
        cgroup_root: the kubelet's `--cgroup-root`; empty to look in the usual places.
        interval_s: a sweep happens at least this often, whether or not an event calls for one.
        moves_pinned: as for `Manager`.
        telemetry: address, empty for every one, and port of probes and metrics; None for neither.
        starter: the process starter, for containers to have mounted; None for none.
        enforcement: as for `Writers`.
        missing_facts: as for `NRIPlugin`.
        nri_waits: for which pods the NRI plugin waits before it connects.
        cri_socket: the container runtime's; None to try the usual ones.
        launch: how the container runtime has started this process as its NRI plugin, if it has.
        cpu_managers: as for `Manager`.
        fail_misfit_after_s: as for `PodFailer`.
        node_name: this node's name in the cluster.
        publishing: as for `TopologyReporter`.
        kubelet_config: the kubelet's configuration; None for its usual place.
        plugin_folders: where plugins for resources make their sockets; none to ask no plugin.
        plugin_names: as for `PluginFacts`.
        reconcile_s: as for `ResourceManager`.
    """

    config: Path
    names: Names = field(default_factory=Names)
    cgroup_root: str = ""
    interval_s: float = SWEEP_INTERVAL_S
    moves_pinned: bool = True
    telemetry: tuple[str, int] | None = None
    starter: Path | None = None
    enforcement: Writer | None = None
    missing_facts: MissingFacts = MissingFacts.HOLD
    nri_waits: WaitRules = field(default_factory=WaitRules)
    cri_socket: Path | None = None
    launch: Launch | None = None
    cpu_managers: CPUManagerPolicies = field(default_factory=lambda: BUILT_IN)
    fail_misfit_after_s: float = 0.0
    node_name: str = ""
    publishing: Publishing = Publishing.OFF
    kubelet_config: Path | None = None
    plugin_folders: tuple[Path, ...] = ()
    plugin_names: Mapping[str, ServedAs] = field(default_factory=dict)
    reconcile_s: float = RECONCILE_S


class Cluster(PodSource, NodeLabels, Protocol):
    """What the agent learns of its cluster, and where it tells something."""

    @property
    def events(self) -> EventSink:
        """Takes what pods' authors and the node's admin shall hear."""
        ...

    @property
    def config_map(self) -> ConfigMapSource | None:
        """The ConfigMap with the pool files; None where the folder of the settings counts."""
        ...

    @property
    def pod_status(self) -> PodStatusSink | None:
        """Writes that a pod has failed; None where no API server keeps the pods."""
        ...

    @property
    def pod_annotations(self) -> PodAnnotationSink | None:
        """Writes which CPUs the agent chose for a pod; None where it does not."""
        ...

    @property
    def node_status(self) -> NodeResourceSink | None:
        """Writes what resource plugins offer into the node's status; None where it does not."""
        ...

    @property
    def topology(self) -> NodeTopologySink | None:
        """Where the node's topology is published; None where it is not."""
        ...

    def node(self) -> Node | None:
        """Return this node, or None until it is known."""
        ...

    def loops(self, beat: Callable[[str], None]) -> Mapping[str, Loop]:
        """Return what must run, by name, to hear from the cluster; each beats with its name."""
        ...

    def wake(self) -> None:
        """Make the loops notice that they shall stop."""
        ...
