"""The pools of our plugin for CPUs, and the pods in them.

A shared pod that is bound to a NUMA node is in a pool there, as in Katalyst. Such a pool is there
as long as its pods, and has what they request; or it follows its load, if that of the file does.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from cpupool.core.names import STATIC_POD_HASH
from cpupool.core.plugin_facts import AnswerPart
from cpupool.plugins.config import PoolSize, pool_on_node
from cpupool.plugins.placing import placed
from cpupool.plugins.state import ServedContainer
from cpupool.policies.qrm.questions import ContainerRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.plugins.config import PluginConfig
    from cpupool.plugins.state import PluginState
    from cpupool.policies.qrm.questions import Question

_DIGITS: Final = 3
"""Further digits of a sum of requests are rounding errors."""


class PoolRef(NamedTuple):
    """A pool.

    Attributes:
        pool: its name in the file.
        node: the NUMA node of one for bound pods of that pool; None for the pool of the file.
    """

    pool: str
    node: int | None = None

    @property
    def name(self) -> str:
        """Its name in the state."""
        return self.pool if self.node is None else pool_on_node(self.pool, self.node)


def pool_of(config: PluginConfig, state: PluginState, held: ServedContainer) -> PoolRef | None:
    """Return the pool in which a container runs; None for none."""
    how = placed(config, held.question)
    if not how.pool:
        return None
    if how.binding is None:
        return PoolRef(how.pool)
    main = state.main_of(held.question.container.pod)
    return None if main is None else PoolRef(how.pool, min(main.by_node))


def requests(config: PluginConfig, state: PluginState) -> Mapping[PoolRef, Mapping[str, float]]:
    """Return pool → id in a pod's cgroup name → how many CPUs the pod requests."""
    found: defaultdict[PoolRef, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for held in state.held.values():
        question, ref = held.question, pool_of(config, state, held)
        if ref is not None and question.role is not ContainerRole.INIT:
            pod = question.annotations.get(STATIC_POD_HASH, question.container.pod)
            found[ref][pod] += question.quantity
    return found


def joined(question: Question, node: int) -> AnswerPart:
    """Return the answer to remember for a container in the pool of a NUMA node."""
    return AnswerPart(quantity=question.quantity, by_node={node: ceil(question.quantity)})


def needed(config: PluginConfig, state: PluginState, question: Question, ref: PoolRef) -> int:
    """Return how many CPUs a pool needs once a container has joined it."""
    after = state.holding(ServedContainer(question, joined(question, ref.node or 0)))
    return _whole(requests(config, after)[ref])


def pool_sizes(
    config: PluginConfig, state: PluginState, most: Mapping[int, int]
) -> Mapping[str, PoolSize]:
    """Return how large each pool should be: those on a NUMA node first, then those of the file.

    Args:
        config: the file.
        state: the containers, each with its pool.
        most: NUMA node → how many CPUs its pool can have.
    """
    found: dict[str, PoolSize] = {}
    for ref, requested in requests(config, state).items():
        if ref.node is not None:
            room = max(1, most.get(ref.node, 0))
            cpus = min(_whole(requested), room)
            of_file = config.pools.get(ref.pool, PoolSize())
            floor = None if of_file.at_least is None else min(of_file.at_least, cpus)
            found[ref.name] = PoolSize(cpus, at_least=floor, node=ref.node, most=room)
    return {**dict(sorted(found.items())), **config.pools}


def _whole(requested: Mapping[str, float]) -> int:
    return max(1, ceil(round(sum(requested.values()), _DIGITS)))
