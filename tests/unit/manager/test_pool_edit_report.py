from __future__ import annotations

from cpupool.core.pools import NodePools, Pool
from tests.unit.manager.laptop import MACHINE, manager


def test_an_edit_says_which_pools_it_changed() -> None:
    change = manager().reconfigure(
        NodePools.of(
            Pool.named("exclusive_a", "2"),
            Pool.named("exclusive_b", "6"),
            Pool.named("shared_b", "0"),
            Pool.named("default", "1"),
        ),
        MACHINE.topology(),
    )
    assert (change.added, change.removed) == (("shared_b",), ("shared_a",))
    assert sorted(change.resized) == ["exclusive_a", "exclusive_b"]
