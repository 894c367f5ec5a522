"""What of the pods can wait for a look, and the end of which pods can."""

from __future__ import annotations

import pytest

from cpupool.core.pools import NodePools, Pool
from cpupool.manager.learner import Learner
from cpupool.manager.manager import Manager
from tests import builders
from tests.machines import MACHINES
from tests.runtimes import ModelRuntime
from tests.setters import Source

POOLS = NodePools.of(
    Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0"), Pool.named("default", "1")
)
PLAIN = builders.pod("plain", builders.container(running=False))
OWNER = builders.pod("owner", builders.container(exclusive_a=1, running=False))


def learner(source: Source, *, nri: bool = True) -> Learner:
    """Make the learner of a node with no pods, which knows all that there is."""
    manager = Manager()
    manager.reconfigure(POOLS, MACHINES["laptop_4c8t"].topology())
    made = Learner(
        manager,
        pods=source,
        devices=source,
        checkpoint=source,
        containers=ModelRuntime(),
        nri=lambda: nri,
    )
    made.learn((), 0.0)
    manager.adopt(())
    return made


def test_pods_that_only_share_can_wait() -> None:
    source = Source()
    made = learner(source)
    source.listed = [PLAIN]
    assert made.can_wait()
    assert made.shares(PLAIN.uid), "it is listed, and not learned yet"
    source.listed = [PLAIN, OWNER]
    assert not made.can_wait()
    assert not made.shares(OWNER.uid)
    made.learn((), 1.0)
    source.listed = []
    assert made.shares(PLAIN.uid), "it is listed no longer, and its end is not learned yet"
    assert not made.shares("another-uid")


@pytest.mark.parametrize("source", [Source(listed=None), Source()])
def test_nothing_waits_that_only_a_list_tells(source: Source) -> None:
    """Without NRI the list names containers; and a list that is not there yet says nothing."""
    made = learner(source, nri=source.listed is None)
    if source.listed is not None:
        source.listed = [PLAIN]
    assert not made.can_wait()
    assert not made.shares(PLAIN.uid)
