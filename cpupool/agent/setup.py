"""The settings of the agent, and its interface to the cluster."""

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
from cpupool.runtime.nri.holding import MissingFacts
from cpupool.runtime.nri.wait_before_connecting import WaitRules

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
    """The settings for the conversation with the container runtime.

    Attributes:
        enforcement: the only way to write containers; None for the best that works.
        missing_facts: the treatment of a container whose devices are unknown, or whose CPUs another
            pod has.
        waits: the pods for which the NRI plugin waits before it connects.
        cri_socket: the runtime's socket for CRI; None to try the usual places.
        launch: the runtime's start of this process as its NRI plugin; None if it has not.
    """

    enforcement: Writer | None = None
    missing_facts: MissingFacts = MissingFacts.HOLD
    waits: WaitRules = field(default_factory=WaitRules)
    cri_socket: Path | None = None
    launch: Launch | None = None

    @property
    def plugged(self) -> bool:
        """Whether the agent is the runtime's NRI plugin."""
        return self.enforcement in {None, Writer.NRI}


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """The settings for the publication of the node's topology.

    Attributes:
        publishing: the published parts.
        node: this node's name in the cluster.
        kubelet: the files of the kubelet's configuration, which has its reservations.
    """

    publishing: Publishing = Publishing.OFF
    node: str = ""
    kubelet: KubeletFiles = field(default_factory=KubeletFiles)


@dataclass(frozen=True, slots=True)
class Setup:
    """The agent's settings, and the facts of its surroundings.

    Attributes:
        config: the folder with `poolconfig-<name>.yaml` files.
        interval_s: a sweep happens at least this often, also without an event.
        telemetry: address, empty for every one, and port of probes and metrics; None for neither.
        starter: the process starter that containers mount; None for none.
        fail_misfit_after_s: the time for which a pod is held before it fails.
        runtime: the settings for the container runtime.
        plugins: the settings for resource plugins.
        topology: the settings for the publication of the node's topology.
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
        """Return the setup from the agent's settings.

        Args:
            given: the settings.
            writer: the only way to write containers; None for the best that works.
            launch: the runtime's start of this process as its NRI plugin; None if it has not.
            own_pod: `namespace/name` of the agent's pod; empty for none.
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
    """The agent's interface to its cluster: facts to read, and objects to write."""

    @property
    def events(self) -> EventSink:
        """Sends Events to pods' authors and the node's admin."""
        ...

    @property
    def config_map(self) -> ConfigMapSource | None:
        """The ConfigMap with the pool files; None if the folder of the settings has them."""
        ...

    @property
    def pod_status(self) -> PodStatusSink | None:
        """Writes that a pod has failed; None without an API server."""
        ...

    @property
    def pod_annotations(self) -> PodAnnotationSink | None:
        """Writes the CPUs that the agent chose for a pod; None if it writes none."""
        ...

    @property
    def node_status(self) -> NodeResourceSink | None:
        """Writes the resources of plugins into the node's status; None if it writes none."""
        ...

    @property
    def topology(self) -> NodeTopologySink | None:
        """Publishes the node's topology; None if it is not published."""
        ...

    def node(self) -> Node | None:
        """Return this node, or None until it is known."""
        ...

    def loops(self, beat: Callable[[str], None]) -> Mapping[str, Loop]:
        """Return name → loop that follows the cluster; each loop beats with its name."""
        ...

    def wake(self) -> None:
        """Make the loops notice `stop`."""
        ...
