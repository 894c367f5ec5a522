"""The frame of roles that write into pods, one pod after the other.

It is level-triggered: each step takes one pod from the latest snapshot. The API server may refuse a
write. The role then tries again, with growing pauses.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cpupool.kube.client import APIError
from cpupool.loops.attempts import PAUSE_S, Attempt
from cpupool.loops.step_loop import StepLoop
from cpupool.telemetry import log as logs
from cpupool.telemetry.failures import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from cpupool.core.workloads import Pod
    from cpupool.telemetry.health import Health

log = logs.get(__name__)

_IDLE_S: Final = 60.0
_FORBIDDEN: Final = 403

K = TypeVar("K", bound="Hashable")


@dataclass(frozen=True, slots=True)
class Write:
    """A write into a pod.

    Attributes:
        pod: the pod.
        due_s: when it is due for the first time; infinite for a pod that has it already.
        send: asks the API server; raises `APIError`.
        done: called once the API server has accepted it.
        again_s: the time in which the API server must show it, before it is due again; infinite if
            once is enough.
    """

    pod: Pod
    due_s: float
    send: Callable[[], None]
    done: Callable[[], None]
    again_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Words:
    """The log's words for a write that the API server refuses.

    Attributes:
        forbidden: the fact, if the agent lacks the right.
        remedy: the remedy for that.
        refused: the fact, after any other refusal.
    """

    forbidden: str
    remedy: str
    refused: str


class PodWriter(StepLoop, Generic[K]):
    """A role that writes into pods. One thread runs it; any thread may call `look` and `wake`.

    Args:
        name: the name of its loop.
        words: the log's words for refusals.
        interrupt: ends the present request.
        health: receives the beats of the loop.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        name: str,
        words: Words,
        *,
        interrupt: Callable[[], None],
        health: Health,
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(partial(health.beat, name))
        self._words = words
        self._interrupt = interrupt
        self._now_s = now_s
        self._attempts: dict[K, Attempt] = {}
        self._failures = Failures()

    @abstractmethod
    def _wanted(self, now_s: float) -> Mapping[K, Write]:
        """Return key → write for each write that pods need."""

    def look(self) -> None:
        """Look at the pods now: one may need a write."""
        # Each sweep asks, and most nodes never need a write.
        if self._attempts or self._may_write():
            super().wake()

    def _may_write(self) -> bool:
        """Return whether a pod can need a write; any thread calls it, so it must not block."""
        return True

    def wake(self) -> None:
        """End a request or a wait, so that `run` notices that it must end."""
        super().wake()
        self._interrupt()

    def step(self) -> float:
        """Make the first write that is due; return the seconds to the next step."""
        now_s = self._now_s()
        wanted = self._wanted(now_s)
        self._attempts = {
            key: self._attempts.get(key) or Attempt(write.due_s) for key, write in wanted.items()
        }
        if not wanted:
            return _IDLE_S
        key = min(self._attempts, key=lambda each: self._attempts[each].due_s)
        due_s = self._attempts[key].due_s
        if due_s > now_s:
            return min(due_s - now_s, _IDLE_S)
        try:
            wanted[key].send()
        except APIError as refusal:
            self._attempts[key] = self._attempts[key].refused(now_s)
            self._complain(wanted[key].pod, refusal)
        else:
            self._attempts[key] = Attempt(now_s + wanted[key].again_s)
            self._failures.ends()
            wanted[key].done()
        return PAUSE_S

    def _complain(self, pod: Pod, refusal: APIError) -> None:
        """Log a refusal once; without the right, the refusals of all pods are one."""
        name, forbidden = f"{pod.namespace}/{pod.name}", refusal.status == _FORBIDDEN
        if not self._failures.begins(f"{'' if forbidden else name} {refusal.status or refusal}"):
            return
        if forbidden:
            log.warning(self._words.forbidden, reason=refusal, so=self._words.remedy)
        else:
            log.warning(self._words.refused, pod=name, reason=refusal)
