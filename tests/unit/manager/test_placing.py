"""What a placement has read, and what keeps it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.assignments import CPUAssignment, Placement
from cpupool.manager import placing
from cpupool.manager.manager import Manager
from cpupool.manager.placing import Reads
from cpupool.policies.static.policy import StaticPolicy
from cpupool.policies.view import DEFAULT, NodeView
from tests.unit.manager.choosing import nodes
from tests.unit.manager.choosing.nodes import web

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod
    from cpupool.manager.resolve import PlacedContainer
    from cpupool.policies.base import ContainerToPlace


class Generous(StaticPolicy):
    """Gives an owner the shared CPUs, too."""

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        made = StaticPolicy.place(self, view, to_place)
        if made.placement is Placement.POLICY:
            return replace(made, shared=view.extents[DEFAULT])
        return made


class Spy(StaticPolicy):
    """Tells which pods it sees."""

    def place(self, view: NodeView, to_place: ContainerToPlace) -> CPUAssignment:
        made = StaticPolicy.place(self, view, to_place)
        seen = {each.cgroup_uid for each in view.pods} | {uid for uid, _ in view.grants.of_pods}
        return replace(made, reason=" ".join(sorted(seen)))


def placed(node: Manager, pod: Pod) -> PlacedContainer:
    (found,) = (
        each for each in node.snapshot().resolution.containers.values() if each.pod.uid == pod.uid
    )
    return found


def comes(node: Manager, *pods: Pod) -> None:
    node.observe(pods=(*(node.snapshot().facts.pods or ()), *pods))


@pytest.mark.parametrize("names", [placing._SHARED_SETS, placing._OF_PODS])
def test_each_part_of_a_view_is_a_field_of_it(names: tuple[str, ...]) -> None:
    assert set(names) <= {field.name for field in fields(NodeView)}


def test_an_owner_stays_when_others_share_other_cpus() -> None:
    owner, sharer, later = web("owner"), web("sharer", 500), web("later")
    node = nodes.manager(owner, sharer)
    before = placed(node, owner), placed(node, sharer)
    assert [each.reads for each in before] == [Reads.MACHINE, Reads.NODE]

    comes(node, later)

    assert placed(node, owner) is before[0]
    assert placed(node, sharer) != before[1]


def test_an_owner_whose_policy_reads_the_shared_sets_follows_them() -> None:
    owner = web("owner")
    node = with_policy(Generous, owner)
    assert (str(placed(node, owner).assignment.cpus), placed(node, owner).reads) == (
        "0-7",
        Reads.NODE,
    )

    comes(node, web("later", 2000))

    assert str(placed(node, owner).assignment.cpus) == "0-1,4-7"


def test_a_policy_sees_no_other_pod_unless_the_container_is_confined() -> None:
    owner, sharer = web("owner"), web("sharer", 500)
    node = with_policy(Spy, owner, sharer)
    assert placed(node, owner).assignment.reason == "owner-uid"
    assert placed(node, sharer).assignment.reason == ""

    hungry = web("hungry", 9000)
    comes(node, hungry)

    assert placed(node, hungry).reads is Reads.EVERYTHING
    assert placed(node, hungry).assignment.reason == "hungry-uid owner-uid sharer-uid"


def with_policy(policy: type[StaticPolicy], *pods: Pod) -> Manager:
    node = Manager()
    node.reconfigure(nodes.under(policy), nodes.MACHINE.topology())
    node.observe(pods=pods)
    node.adopt(())
    return node
