from __future__ import annotations

from dataclasses import replace

import pytest

from cpupool.core.cgroups import FoundContainer
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from tests import builders
from tests.unit.manager.laptop import MACHINE, cpus_of, health


class TestSharedPartOfPinnedContainers:
    """A container with CPUs of its own on a kernel that forgets its threads' affinity."""

    AFTER = NodePools.of(
        Pool.named("exclusive_a", "2,4"),
        Pool.named("exclusive_c", "6"),
        Pool.named("shared_a", "0"),
    )
    BEFORE = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,6"))

    def node(self, pools: NodePools, *, moves_pinned: bool = False) -> Manager:
        node = Manager(Names(), moves_pinned=moves_pinned)
        node.reconfigure(pools, MACHINE.topology())
        pinned = builders.pod("pinned", builders.container(exclusive_a=1, shared_a=10))
        light = builders.pod("light", builders.container(shared_a=10))
        node.observe(pods=[pinned, light])
        node.accept(builders.given(pinned, announced="2", exclusive_a="2"))
        node.accept(
            builders.given(pinned, announced="0,6", shared_a="1")
            | builders.given(light, shared_a="2")
        )
        return node

    def test_it_keeps_its_shared_part_and_others_move(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())

        assert cpus_of(node, "pinned") == "0,2,6"
        assert cpus_of(node, "light") == "0"
        (stale,) = (
            placed.pod.name
            for placed in node.snapshot().resolution.containers.values()
            if placed.assignment.stale
        )
        assert stale == "pinned"

    def test_no_other_gets_a_cpu_on_which_it_still_runs(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        assert health(node, "exclusive_c") == {"6": False}

    def test_its_next_instance_has_the_new_shared_part(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        again = builders.container(exclusive_a=1, shared_a=10)
        node.observe(pods=[builders.pod("pinned", replace(again, id=ContainerID("next")))])

        _, resolution = node.snapshot()
        assert str(resolution.assignment(("pinned-uid", ContainerID("next"))).cpus) == "0,2"
        assert health(node, "exclusive_c") == {"6": True}

    def test_an_edit_that_is_taken_back_leaves_nothing_stale(self) -> None:
        node = self.node(self.BEFORE)
        node.reconfigure(self.AFTER, MACHINE.topology())
        node.reconfigure(self.BEFORE, MACHINE.topology())
        assert not any(
            one.assignment.stale for one in node.snapshot().resolution.containers.values()
        )

    def test_it_moves_at_once_where_the_kernel_remembers(self) -> None:
        node = self.node(self.BEFORE, moves_pinned=True)
        node.reconfigure(self.AFTER, MACHINE.topology())
        assert cpus_of(node, "pinned") == "0,2"

    @pytest.mark.parametrize(
        ("found", "then"),
        [("0,2,6", "0,2,6"), ("0-7", "0,2"), ("0,2", "0,2")],
        ids=["as told", "a foreign write", "right already"],
    )
    def test_a_restarted_agent_recognises_it(self, found: str, then: str) -> None:
        node = self.node(self.AFTER)
        node.adopt([FoundContainer("pinned-uid", "main-id", "some/path", found)])
        assert cpus_of(node, "pinned") == then

    def test_nothing_is_recognised_where_the_kernel_remembers(self) -> None:
        node = self.node(self.AFTER, moves_pinned=True)
        node.adopt([FoundContainer("pinned-uid", "main-id", "some/path", "0,2,6")])
        assert cpus_of(node, "pinned") == "0,2"

    def test_what_is_none_of_its_kind_is_passed_over(self) -> None:
        node = self.node(self.AFTER)
        node.adopt(
            [
                FoundContainer("light-uid", "main-id", "some/path", "0,6"),
                FoundContainer("nobody", "x", "some/path", "0,6"),
            ]
        )
        assert cpus_of(node, "light") == "0"
