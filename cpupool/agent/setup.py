"""What the agent is made with: its settings, and its cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from cpupool.agent.ports import NodeLabels
from cpupool.config.settings import AgentSettings, Publishing
from cpupool.core.cgroups import Writer
from cpupool.host.kubelet_file import KubeletFiles
from cpupool.manager.ports import PodSource
from cpupool.qrm.resource_manager import PluginSettings
from cpupool.runtime.nri.connecting import WaitRules
from cpupool.runtime.nri.holding import MissingFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.agent.ports import NodeTopologySink, PodAnnotationSink, PodStatusSink
    from cpupool.core.events import EventSink
    from cpupool.core.workloads import Node
    from cpupool.host.pool_files import ConfigMapSource
    from cpupool.loops.supervisor import Loop
    from cpupool.qrm.node_resources_writer import NodeResourceSink
    from cpupool.runtime.nri.connection import Launch

SWEEP_INTERVAL_S: Final = AgentSettings().sweep_interval_s


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """How the agent speaks with the container runtime.

    Attributes:
        enforcement: the one way in which containers are written; None for the best that works.
        missing_facts: how a container is treated whose devices are unknown, or whose CPUs another
            pod has.
        waits: for which pods the NRI plugin waits before it connects.
        cri_socket: where the runtime listens for CRI; None to try the usual places.
        launch: how the runtime has started this process as its NRI plugin, if it has.
    """

    enforcement: Writer | None = None
    missing_facts: MissingFacts = MissingFacts.HOLD
    waits: WaitRules = field(default_factory=WaitRules)
    cri_socket: Path | None = None
    launch: Launch | None = None

    @property
    def plugged(self) -> bool:
        """Whether the agent is to be the runtime's NRI plugin."""
        return self.enforcement in {None, Writer.NRI}


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """As what the node's topology is published.

    Attributes:
        publishing: what is published.
        node: this node's name in the cluster.
        kubelet: where the kubelet's configuration is, which says what it reserves.
    """

    publishing: Publishing = Publishing.OFF
    node: str = ""
    kubelet: KubeletFiles = field(default_factory=KubeletFiles)


@dataclass(frozen=True, slots=True)
class Setup:
    """What the agent is made with, from its settings and its surroundings.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files.
        interval_s: a sweep happens at least this often, whether or not an event calls for one.
        telemetry: address, empty for every one, and port of probes and metrics; None for neither.
        starter: the process starter, for containers to have mounted; None for none.
        fail_misfit_after_s: how long a pod is held before it fails.
        runtime: how it speaks with the container runtime.
        plugins: which plugins for resources it asks.
        topology: as what it publishes the node's topology.
    """

    config: Path
    interval_s: float = SWEEP_INTERVAL_S
    telemetry: tuple[str, int] | None = None
    starter: Path | None = None
    fail_misfit_after_s: float = 0.0
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    plugins: PluginSettings = field(default_factory=PluginSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)

    @classmethod
    def of(
        cls, given: AgentSettings, *, writer: Writer | None, launch: Launch | None, own_pod: str
    ) -> Self:
        """Return what the agent's settings say.

        Args:
            given: the settings.
            writer: the one way to write containers; None for what the node offers.
            launch: how the runtime has started this process as its NRI plugin, if it has.
            own_pod: as for `WaitRules`.
        """
        return cls(
            config=Path(given.config),
            interval_s=given.sweep_interval_s,
            telemetry=("", given.metrics_port) if given.metrics_port else None,
            starter=Path(given.starter),
            fail_misfit_after_s=given.fail_misfit_after_s,
            runtime=RuntimeSettings(
                enforcement=writer,
                missing_facts=MissingFacts(given.nri_missing_facts),
                waits=WaitRules(given.nri_wait_s, own_pod),
                cri_socket=Path(given.cri_socket) if given.cri_socket else None,
                launch=launch,
            ),
            plugins=PluginSettings.of(given),
            topology=TopologySettings(
                publishing=Publishing(given.node_topology),
                node=given.node_name,
                kubelet=KubeletFiles.named(given.kubelet_config, given.kubelet_config_dir),
            ),
        )


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
        """Writes what plugins offer for the node into its status; None where it does not."""
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
