"""The policy `qrm`: where containers run by the answers of plugins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core import default_pool, environment
from cpupool.core.assignments import Cause, CPUAssignment, Placement
from cpupool.core.cpu_manager import CPUManager
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.core.grants import Grant, Grants, PodOwner, Source
from cpupool.core.names import POLICY_CPUS
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerRef
from cpupool.policies.base import ChoiceRequest, ContainerToPlace
from cpupool.policies.built_in import BUILT_IN
from cpupool.policies.none.policy import NonePolicy
from cpupool.policies.qrm.policy import QRM, QRMPolicy
from cpupool.policies.view import DEFAULT, NodeView
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.core.workloads import Pod

MACHINE = MACHINES["arm_no_smt"].topology()
POOLS = NodePools.of(
    Pool.named("default", "0-7"), cpu_manager=CPUManager(QRM, reserved=CPUSet.of(0))
)
POLICY = QRMPolicy.of_pools(POOLS, MACHINE)
WEB = builders.pod("web", builders.container("main"), builders.container("log"))


def view(own: str = "", shared: str = "", pod: str = "other-uid") -> NodeView:
    """Make a node where plugins name CPUs for a pod, and for the container `web/main`."""
    parts = {"main": CPUSet.parse(own)}
    grant = Grant(PodOwner(pod), POLICY_CPUS, Source.PLUGIN, parts, whole_cores=False)
    grants = Grants().adding([grant])
    bare = NodeView(
        MACHINE,
        POOLS,
        default_pool.declared(POOLS, MACHINE),
        grants,
        grants.cpus,
        answered={ContainerRef("web-uid", "main"): CPUSet.parse(shared)},
    )
    extents = POLICY.extents(bare)
    default = CPUAssignment(Placement.DEFAULT, default=extents[DEFAULT])
    return replace(bare, extents=extents, default=default)


def placed(on: NodeView, container: int = 0) -> tuple[Placement, str]:
    assignment = POLICY.place(on, ContainerToPlace(WEB, WEB.containers[container]))
    return assignment.placement, str(assignment.cpus)


def test_a_pool_file_can_choose_it() -> None:
    assert BUILT_IN[QRM].of_pools(POOLS, MACHINE) == POLICY


def test_containers_without_an_answer_share_what_no_container_owns() -> None:
    assert placed(view()) == (Placement.DEFAULT, "0-7")
    assert placed(view(own="2-3")) == (Placement.DEFAULT, "0-1,4-7")


def test_an_answer_names_a_part_of_that() -> None:
    on = view(own="2-3", shared="1-5")
    assert placed(on) == (Placement.PLUGIN, "1,4-5")
    assert placed(on, 1) == (Placement.DEFAULT, "0-1,4-7")


@pytest.mark.parametrize(
    ("pods", "owner"), [((), "another pod"), ((builders.pod("other"),), "pod default/other")]
)
def test_cpus_that_another_pod_owns_confine_the_container_of_an_answer(
    pods: tuple[Pod, ...], owner: str
) -> None:
    claimed = {ContainerRef("web-uid", "main"): CPUSet.parse("3-4")}
    on = replace(view(own="2-3"), pods=pods, claimed=claimed)
    found = POLICY.place(on, ContainerToPlace(WEB, WEB.containers[0]))
    assert (found.cause, str(found.cpus)) == (Cause.ANSWER, "0-1,4-7")
    assert found.reason == (f"its plugin gives it CPUs 3-4 exclusively, but {owner} owns them")


def test_an_answer_whose_cpus_others_own_names_none() -> None:
    assert placed(view(own="2-3", shared="2-3")) == (Placement.DEFAULT, "0-1,4-7")


@pytest.mark.parametrize("policy", [POLICY, NonePolicy()])
def test_an_owner_has_its_cpus_under_every_policy(policy: NonePolicy) -> None:
    assignment = policy.place(
        view(own="2-3", pod="web-uid"), ContainerToPlace(WEB, WEB.containers[0])
    )
    assert assignment.placement is Placement.PLUGIN
    assert (str(assignment.exclusive), str(assignment.cpus)) == ("2-3", "2-3")
    # What the kubelet allows a container stays: the plugin has counted on it.
    assert assignment.limit is None
    assert dict(environment.of_container(assignment)) == {"EXCLUSIVE_CPUS": "2-3"}


def test_the_policy_itself_chooses_nothing() -> None:
    assert POLICY.requests(builders.pod("own", builders.container(cpu=2000))) == {}
    assert str(POLICY.available(view())) == "1-7"
    with pytest.raises(NotEnoughCPUs):
        POLICY.choose(view(), ChoiceRequest(POLICY_CPUS, 1, CPUSet.of(1)))
