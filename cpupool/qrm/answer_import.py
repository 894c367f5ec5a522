"""Imports what Katalyst's manager has recorded of running pods, on a node that moves to cpupool."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cpupool.core.errors import CPUPoolError
from cpupool.core.workloads import ContainerRef, oldest_first
from cpupool.manager import by_plugins
from cpupool.qrm import katalyst_checkpoint
from cpupool.telemetry import log as logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cpupool.core.events import EventSink
    from cpupool.core.plugin_facts import AnswerParts, RecordedAnswer
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import Snapshot
    from cpupool.qrm.answer_book import AnswerBook

log = logs.get(__name__)


class AnswerImport:
    """Reads the manager's file once, and hands its answers over once the pods are known.

    Args:
        files: where Katalyst's managers have theirs.
        events: hears that they cannot be read, or that an answer is not valid.
    """

    def __init__(self, files: Iterable[Path], events: EventSink) -> None:
        self._files = tuple(files)
        self._events = events
        self._found: Mapping[ContainerRef, AnswerParts] = {}

    @property
    def resources(self) -> frozenset[str]:
        """The resources with answers that have not been handed over."""
        return frozenset().union(*self._found.values())

    def find(self) -> bool:
        """Read the file, and return whether there is something to hand over."""
        try:
            self._found = katalyst_checkpoint.answers(self._files)
        except CPUPoolError as error:
            log.warning("answers are not imported", error=error)
            self._events.node("PluginAnswersNotImported", str(error))
        return bool(self._found)

    def hand_over(self, now: Snapshot, book: AnswerBook) -> None:
        """Let a book take the answers for the pods of a moment, of the oldest pod first.

        A book takes the answers for the resources that a container requests: what a plugin has
        answered beside them comes with its next list.
        """
        taken: dict[tuple[ContainerRef, str], RecordedAnswer] = {}
        pods: dict[str, Pod] = {}
        for pod in oldest_first(now.resolution.view.pods):
            for container in pod.containers:
                ref = ContainerRef(pod.cgroup_uid, container.name)
                has = self._found.get(ref, {})
                asked = by_plugins.plugin_requests(now.facts, now.resolution.grants, pod, container)
                for resource in sorted(asked.keys() & has.keys()):
                    quantity, answer = asked[resource], has[resource]
                    # An amount that the file has lost is at least the requested one.
                    answer = replace(answer, quantity=answer.quantity or quantity)
                    given = book.asked_for(pod, quantity, {resource: answer})
                    taken[ref, resource], pods[ref.pod] = given, pod
        refused = book.take(now, taken)
        for (ref, _), why in refused.items():
            said = f"container {ref.name}: {why}: it is not used; create the pod again"
            self._events.pod(pods[ref.pod], "PluginAnswerRefused", said)
        count, self._found = sum(map(len, self._found.values())), {}
        log.info(
            "answers of Katalyst's manager are imported",
            taken=len(taken) - len(refused),
            refused=len(refused),
            left_out=count - len(taken),
        )
