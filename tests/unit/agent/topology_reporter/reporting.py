"""A node whose topology is published at an API server in small, step by step."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from cpupool.agent.topology_reporter import TopologyReporter
from cpupool.config.settings import Publishing
from cpupool.core.names import Names
from cpupool.core.node_topology import KubeletAmounts
from cpupool.core.pools import NodePools, Pool
from cpupool.kube.client import APIServer
from cpupool.kube.cluster_view import ClusterView
from cpupool.kube.node_topology import NodeTopologyObject
from cpupool.manager.manager import Manager
from cpupool.manager.node_topology import Surroundings
from cpupool.telemetry.metrics import Metrics
from cpupool.wire import node_topology
from cpupool.wire.node_topology import GROUP, V1ALPHA1, V1ALPHA2
from tests import builders
from tests.loops import running, running_all
from tests.machines import MACHINES
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.core.errors import CPUPoolError
    from cpupool.core.workloads import Pod
    from tests.apiserver import FakeAPIServer

NODE = "node-a"
PLURAL = node_topology.PLURAL
PATH = f"/apis/{GROUP}/{V1ALPHA2}/{PLURAL}/{NODE}"
NODE_PATH = f"/api/v1/nodes/{NODE}"
SERVED = {GROUP: [V1ALPHA1, V1ALPHA2]}
MACHINE = MACHINES["telco_2s_2n_16c32t"]
POOLS = NodePools.of(Pool.named("exclusive_a", "2-5"), Pool.named("default", "0-1"))


@dataclass
class Books:
    """The kubelet's books.

    Attributes:
        kept: what is in them.
        error: why they cannot be read; None where they can.
        looks: how often the agent has asked for them.
    """

    kept: KubeletAmounts = field(default_factory=KubeletAmounts)
    error: CPUPoolError | None = None
    looks: int = 0

    def amounts(self) -> KubeletAmounts:
        self.looks += 1
        if self.error:
            raise self.error
        return self.kept


class Reporting:
    """The role, and its cluster.

    Args:
        api: the API server.
        ready: as below.

    Attributes:
        now_s: the role's clock.
        ready: whether it is known who owns which CPU.
    """

    def __init__(self, api: FakeAPIServer, *, ready: bool = True) -> None:
        self.api = api
        self.now_s = 1000.0
        self.ready = ready
        self.books = Books()
        self.manager, self.metrics = Manager(), Metrics()
        self.manager.reconfigure(POOLS, MACHINE.topology())
        self.manager.adopt(())
        self.run_pods()
        server = APIServer.at(api.url)
        self.cluster = ClusterView(
            server, NODE, Names(), self.metrics, lambda: None, pods_changed=lambda: None
        )
        self.sink = NodeTopologyObject(
            server, NODE, restarted=self.metrics.watch_restarted, look_s=0.01
        )
        self.role = TopologyReporter(
            self.manager,
            self.sink,
            Publishing.ZONES,
            node=self.cluster.node,
            node_name=NODE,
            around=self._around,
            ready=lambda: self.ready,
            telemetry=builders.telemetry(events=self.cluster.events, metrics=self.metrics),
            now_s=lambda: self.now_s,
        )

    def _around(self) -> Surroundings:
        return Surroundings(amounts=self.books.amounts())

    def run_pods(self, *names: str) -> None:
        """Make these the pods of the node; each counts in the fingerprint."""
        self.manager.observe(pods=[running_pod(name) for name in names])

    @property
    def tries(self) -> int:
        """How many writes the API server was asked for."""
        return self.api.count("patch", PLURAL)

    @property
    def object(self) -> dict[str, Any]:
        return self.api.kept(PATH)

    @property
    def fingerprint(self) -> str:
        values: dict[str, str] = {each["name"]: each["value"] for each in self.object["attributes"]}
        return values["nodeTopologyPodsFingerprint"]

    def owners(self) -> list[str]:
        return [owner["uid"] for owner in self.object["metadata"]["ownerReferences"]]

    def await_sight(self) -> None:
        """Wait until the agent knows the Node and the object as the API server has them."""
        eventually(self._in_sight, "the agent sees the object")

    def pass_time(self, seconds: float, every_s: float = 1.0) -> None:
        """Let time pass, with a look at every so many seconds, as sweeps cause it."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += every_s
            self.await_sight()
            self.role.step()
        self.await_sight()

    def writes_within(self, seconds: float) -> bool:
        """Let time pass; return whether the role has tried to write."""
        tries = self.tries
        self.pass_time(seconds)
        return self.tries > tries

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Keep the agent from seeing what happens to the object."""
        last = self.sink.observed()
        with patch.object(NodeTopologyObject, "observed", lambda _self: last):
            yield

    def _in_sight(self) -> bool:
        seen, node = self.sink.observed(), self.cluster.node()
        if seen is None or node is None:
            return False
        kept = [node_topology.observed(self.object)] if self.api.has(PATH) else []
        uid = self.api.kept(NODE_PATH)["metadata"]["uid"]
        return [*seen] == kept and node.uid == uid


def running_pod(name: str) -> Pod:
    """Make a pod that a scheduler must see in the object."""
    main = replace(builders.container(exclusive_a=1), lasting=frozenset({"cpu"}))
    return replace(builders.pod(name, main), running=True)


@contextmanager
def reporting(api: FakeAPIServer, *, ready: bool = True) -> Iterator[Reporting]:
    """Run a node that knows its cluster."""
    found = Reporting(api, ready=ready)
    with running_all(found.cluster), running(found.sink.run, wake=found.sink.wake):
        for resource in ("pods", "nodes"):
            eventually(lambda: api.watching(resource), f"a watch of {resource}")  # noqa: B023
        yield found
