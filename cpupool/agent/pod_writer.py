"""The frame of roles that write into pods, one pod after the other.

Level-triggered: each step takes one pod from the latest snapshot. The API server may refuse a
write; it is then tried again, ever more rarely.
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
        done: called once the API server has taken it.
        again_s: how long the API server may take to show it, before it is due again; infinite if
            once is enough.
    """

    pod: Pod
    due_s: float
    send: Callable[[], None]
    done: Callable[[], None]
    again_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Words:
    """What the log says of a write that the API server refuses.

    Attributes:
        forbidden: the fact, without the right to write.
        remedy: what to do then.
        refused: the fact, after any other refusal.
    """

    forbidden: str
    remedy: str
    refused: str


class PodWriter(StepLoop, Generic[K]):
    """A role that writes into pods. One thread runs it; any thread may call `look` and `wake`.

    Args:
        name: the name of its loop.
        words: what the log says of refusals.
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
        """Return the writes that pods need: what identifies a write → the write."""

    def look(self) -> None:
        """Look at the pods now: one may need a write."""
        # Most nodes never need one, and each sweep asks.
        if self._attempts or self._may_write():
            super().wake()

    def _may_write(self) -> bool:
        """Return whether a pod can need a write; any thread asks, and must not wait."""
        return True

    def wake(self) -> None:
        """End a request or a wait, so that `run` notices that it must end."""
        super().wake()
        self._interrupt()

    def step(self) -> float:
        """Make the write that is due first, if one is due; return the seconds to the next step."""
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
