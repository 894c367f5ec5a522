"""The node resources role: it writes what resource plugins offer into the node's status.

A pod can only request a resource that the status names. Only a setting switches the role on, and
only an overlay of the manifests gives the agent the right. Level-triggered: each step compares the
Node with the offers, so that a Node that was created again, or a resource that the kubelet has
zeroed, is written again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.kube.client import APIError
from cpupool.loops.attempts import Attempt
from cpupool.loops.step_loop import StepLoop
from cpupool.manager.report import NodeResource
from cpupool.qrm import node_resources
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cpupool.core.names import Names
    from cpupool.core.workloads import Node
    from cpupool.qrm.node_resources import PluginAmounts, StatusAmounts
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

NAME: Final = "node resources"
_IDLE_S: Final = 60.0
_FORBIDDEN: Final = 403
_GRANT: Final = "apply the component daemonsets/node-resources, or --no-write-node-resources"
_LOOK: Final = "check that the API server answers, and what limits the agent's requests there"
_RENAME: Final = "let the plugin offer another resource, or none"


class NodeResourceSink(Protocol):
    """Where the extended resources of the node are written."""

    def apply(self, node_uid: str, amounts: Mapping[str, int]) -> None:
        """Set these resources, and remove every other one that cpupool has set.

        Args:
            node_uid: the UID of the Node; a successor with its name is not changed.
            amounts: resource → how much pods can have.

        Raises:
            APIError: there is no answer, or it is a refusal.
        """
        ...

    def interrupt(self) -> None:
        """End the request that is going on, and every later one."""
        ...


class NodeResources(StepLoop):
    """The role. One thread runs it; any thread may call `look` and `wake`.

    Args:
        sink: the node's status.
        offers: returns what plugins say that the node has.
        node: returns the Node, None while it is not known.
        names: the names of the pools' resources.
        report: takes what the status has, and what not, for `cpupool status`.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        sink: NodeResourceSink,
        offers: Callable[[], PluginAmounts],
        *,
        node: Callable[[], Node | None],
        names: Names,
        report: Callable[[tuple[NodeResource, ...]], None],
        health: Health,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(partial(health.beat, NAME))
        self._sink = sink
        self._offers = offers
        self._node = node
        self._names = names
        self._report = report
        self._now_s = now_s
        self._tried: object = None
        self._next = Attempt(0.0)
        self._failures = Failures()
        self._failure = self._remedy = ""
        self._refused: Mapping[str, str] = {}

    look = StepLoop.wake

    def wake(self) -> None:
        """End a request or a wait, so that `run` notices that it must end."""
        super().wake()
        self._sink.interrupt()

    def step(self) -> float:
        """Write the resources if the Node differs; return the seconds to the next step."""
        node, (offers, complete) = self._node(), self._offers()
        if node is None:
            return _IDLE_S
        wanted = node_resources.wanted(offers, node.resources, self._names, complete=complete)
        wait_s = _IDLE_S
        if node_resources.shown(node.resources, wanted.amounts):
            self._works()
        else:
            wait_s = self._write(node.uid, wanted.amounts)
        self._tell(wanted)
        return wait_s

    def _write(self, node_uid: str, amounts: Mapping[str, int]) -> float:
        """Write the amounts; the same ones that another program changes, later and later."""
        now_s = self._now_s()
        if self._tried != (node_uid, amounts):
            self._tried = node_uid, amounts
            self._next = Attempt(now_s)
        if self._next.due_s > now_s:
            return self._next.due_s - now_s
        self._next = self._next.refused(now_s)
        try:
            self._sink.apply(node_uid, amounts)
        except APIError as refusal:
            due_s = max(self._next.due_s, now_s + refusal.retry_after_s)
            self._next = replace(self._next, due_s=due_s)
            self._complain(refusal)
        else:
            listed = ",".join(f"{name}={count}" for name, count in sorted(amounts.items()))
            log.info("node's resources written", resources=listed or "none")
            self._works()
        return self._next.due_s - now_s

    def _complain(self, refusal: APIError) -> None:
        self._remedy = _GRANT if refusal.status == _FORBIDDEN else _LOOK
        self._failure = str(refusal)
        if self._failures.begins(refusal):
            log.warning("node's resources not written", reason=refusal, so=self._remedy)

    def _works(self) -> None:
        self._failure = self._remedy = ""
        self._failures.ends()

    def _tell(self, wanted: StatusAmounts) -> None:
        """Report what is written and what not, and log once what is refused."""
        for name, why in wanted.refused.items():
            if self._refused.get(name) != why:
                log.warning(
                    "resource of the node not written", resource=name, reason=why, so=_RENAME
                )
        self._refused = wanted.refused
        amounts = wanted.amounts.items()
        written = (NodeResource(name, has, self._failure, self._remedy) for name, has in amounts)
        refused = (NodeResource(name, 0, why, _RENAME) for name, why in wanted.refused.items())
        self._report((*written, *refused))
