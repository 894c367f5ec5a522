from __future__ import annotations

import errno
import logging

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupNotFound, CgroupWriteRejected
from cpupool.enforce.apply import bring, bring_nested
from cpupool.enforce.write_order import Write
from cpupool.host.cgroupfs import CgroupVersion
from tests.cgroups import (
    CgroupTreeContract,
    Ground,
    KernelModel,
    V1RulesContract,
    V2RulesContract,
    model_ground,
    rejected,
)

POD = "kubepods/pod1"
CONTAINER = f"{POD}/c"
NESTED = f"{CONTAINER}/n"


class TestModelOfCgroupV1(CgroupTreeContract, V1RulesContract):
    @pytest.fixture
    def ground(self) -> Ground:
        return model_ground(CgroupVersion.V1)


class TestModelOfCgroupV2(CgroupTreeContract, V2RulesContract):
    @pytest.fixture
    def ground(self) -> Ground:
        return model_ground(CgroupVersion.V2)


def v1(pod: str = "0-7", container: str = "0-1", nested: str = "0-1") -> KernelModel:
    sets = {"kubepods": "0-7", POD: pod, CONTAINER: container, NESTED: nested}
    return KernelModel(CgroupVersion.V1, sets)


def v2(kubepods: str, container: str) -> KernelModel:
    sets = {"kubepods": kubepods, POD: "", CONTAINER: container}
    return KernelModel(CgroupVersion.V2, sets)


def refuse() -> None:
    raise rejected(CONTAINER, errno.EBUSY)


def test_a_repair_gives_the_writes_that_it_made() -> None:
    assert bring(v1(), CONTAINER, CPUSet.of(4)) == (
        Write(CONTAINER, CPUSet.of(0, 1, 4)),
        Write(NESTED, CPUSet.of(4)),
        Write(CONTAINER, CPUSet.of(4)),
    )


def test_a_write_that_is_refused_once_is_tried_again() -> None:
    tree = v1()
    tree.before_write[2] = refuse
    bring(tree, CONTAINER, CPUSet.of(4))
    assert tree.sets[CONTAINER] == tree.sets[NESTED] == CPUSet.of(4)


def test_after_the_last_refusal_every_cgroup_gets_its_earlier_set_back() -> None:
    tree = v1(pod="0-1")
    before = dict(tree.sets)
    tree.refusing.add(NESTED)
    with pytest.raises(CgroupWriteRejected) as caught:
        bring(tree, CONTAINER, CPUSet.of(4), attempts=2)
    assert caught.value.errno == errno.EIO
    assert tree.sets == before
    assert {write.path for write in tree.writes} == {POD, CONTAINER}


def test_a_cgroup_that_cannot_be_put_back_is_logged_and_the_others_are_put_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree = v1(pod="0-1")
    tree.refusing.add(NESTED)
    # Writes: the pod, the container, the refused nested one; then the container is put back.
    tree.before_write[4] = refuse
    with caplog.at_level(logging.WARNING), pytest.raises(CgroupWriteRejected):
        bring(tree, CONTAINER, CPUSet.of(4), attempts=1)
    assert [record.getMessage().split(" error=")[0] for record in caplog.records] == [
        f"cgroup not put back cgroup={CONTAINER}",
        f"cgroup not put back cgroup={POD}",
    ]
    assert CPUSet.of(0, 1) <= tree.sets[CONTAINER]


def test_a_nested_cgroup_that_vanishes_is_passed_over() -> None:
    tree = v1()
    tree.before_write[2] = lambda: tree.remove(NESTED)
    bring(tree, CONTAINER, CPUSet.of(4), attempts=1)
    assert tree.sets[CONTAINER] == CPUSet.of(4)


def test_a_nested_cgroup_that_appears_meanwhile_is_taken_along() -> None:
    tree = v1()
    tree.before_write[3] = lambda: tree.make(f"{CONTAINER}/new", "0-1")
    bring(tree, CONTAINER, CPUSet.of(4))
    assert tree.sets[f"{CONTAINER}/new"] == tree.sets[CONTAINER] == CPUSet.of(4)


def test_nested_cgroups_follow_a_container_that_another_program_has_widened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree, want, before = v1(container="0-3"), CPUSet.parse("0-3"), CPUSet.of(0, 1)
    tree.make(f"{CONTAINER}/own", "1")
    tree.refusing.add(NESTED)
    with caplog.at_level(logging.WARNING):
        assert not bring_nested(tree, CONTAINER, want, before)
    assert f"nested cgroups stay on other CPUs cgroup={CONTAINER}" in caplog.text

    tree.refusing.clear()
    assert bring_nested(tree, CONTAINER, want, before)
    assert (tree.sets[NESTED], tree.sets[f"{CONTAINER}/own"]) == (want, CPUSet.of(1))


def test_a_nested_cgroup_that_has_ended_has_nothing_to_follow() -> None:
    tree = v1(container="0-3")
    tree.before_write[1] = lambda: tree.remove(NESTED)
    assert bring_nested(tree, CONTAINER, CPUSet.parse("0-3"), CPUSet.of(0, 1))
    tree.remove(CONTAINER)
    assert bring_nested(tree, CONTAINER, CPUSet.parse("0-3"), CPUSet.of(0, 1))


def test_a_container_that_ends_meanwhile_leaves_its_pod_as_it_was() -> None:
    tree = v1(pod="0-1")
    tree.before_write[2] = lambda: tree.remove(CONTAINER)
    with pytest.raises(CgroupNotFound) as caught:
        bring(tree, CONTAINER, CPUSet.of(4))
    assert caught.value.path == CONTAINER
    assert tree.sets == {"kubepods": CPUSet(range(8)), POD: CPUSet.of(0, 1)}


def test_a_pod_that_ends_meanwhile_is_nothing_to_put_back() -> None:
    tree = v1(pod="0-1")
    tree.before_write[2] = lambda: tree.remove(POD)
    with pytest.raises(CgroupNotFound) as caught:
        bring(tree, CONTAINER, CPUSet.of(4))
    assert caught.value.path == CONTAINER
    assert tree.sets == {"kubepods": CPUSet(range(8))}


def test_another_writer_is_overcome_when_it_stops() -> None:
    tree = v1(nested="0")
    tree.before_write[1] = lambda: tree.make(NESTED, "1")
    bring(tree, CONTAINER, CPUSet.of(0))
    assert tree.sets[CONTAINER] == CPUSet.of(0)


def test_the_ancestor_in_the_way_is_named_and_the_right_sets_stay() -> None:
    tree = v2(kubepods="0-3", container="0-3")
    tree.online = CPUSet(range(4))
    with pytest.raises(CgroupWriteRejected) as caught:
        bring(tree, CONTAINER, CPUSet.of(2, 4))
    assert caught.value.errno == 0
    assert "it has 2, and kubepods lacks 4; bring that online" in str(caught.value)
    assert tree.sets[CONTAINER] == CPUSet.of(2, 4)
    assert tree.effective(CONTAINER) == CPUSet.of(2)


def test_a_set_that_would_fall_back_to_all_of_the_parents_cpus_is_not_left_behind() -> None:
    tree = v2(kubepods="0-3", container="0-1")
    tree.online = CPUSet(range(4))
    with pytest.raises(CgroupWriteRejected) as caught:
        bring(tree, CONTAINER, CPUSet.of(4))
    assert "it has 0-3, and kubepods lacks 4" in str(caught.value)
    assert tree.effective(CONTAINER) == CPUSet.of(0, 1)
    assert tree.sets["kubepods"] == CPUSet(range(4))


class Overwritten(KernelModel):
    """A tree in which somebody else puts CPU 6 into whatever is written."""

    def write(self, path: str, cpus: CPUSet) -> None:
        super().write(path, cpus)
        self.make(path, "6")


def test_a_set_that_does_not_last_is_laid_to_another_writer() -> None:
    tree = Overwritten(CgroupVersion.V2, {"kubepods": "0-7", POD: "", CONTAINER: "0-3"})
    with pytest.raises(CgroupWriteRejected) as caught:
        bring(tree, CONTAINER, CPUSet.of(2), attempts=3)
    assert caught.value.errno == 0
    assert "it runs on 6; find the program that writes this cgroup too" in str(caught.value)


def test_what_inherited_before_is_not_set_to_nothing_when_a_repair_fails() -> None:
    tree = v2(kubepods="0-3", container="")
    tree.online = CPUSet(range(4))
    with pytest.raises(CgroupWriteRejected) as caught:
        bring(tree, CONTAINER, CPUSet.of(4))
    assert caught.value.errno == 0
    assert tree.sets[CONTAINER] == CPUSet.of(4)


def test_a_cgroup_that_was_written_twice_is_put_back_in_two_steps() -> None:
    deepest = f"{NESTED}/m"
    tree = v1()
    tree.make(deepest, "0-1")
    before = dict(tree.sets)
    # Writes: the container and the nested one widened, the deepest moved, the nested one narrowed.
    tree.before_write[5] = refuse
    with pytest.raises(CgroupWriteRejected):
        bring(tree, CONTAINER, CPUSet.of(4), attempts=1)
    assert [write.path for write in tree.writes[:4]] == [CONTAINER, NESTED, deepest, NESTED]
    assert tree.sets == before


class Delegated(KernelModel):
    """As the agent sees it on cgroup v2 under nsdelegate: it may not write its own container's."""

    def write(self, path: str, cpus: CPUSet) -> None:
        if path == CONTAINER:
            raise rejected(path, errno.EPERM)
        super().write(path, cpus)


def test_the_agents_own_container_is_confined_through_its_pod() -> None:
    tree = Delegated(CgroupVersion.V2, {"kubepods": "0-7", POD: "", CONTAINER: ""})
    bring(tree, CONTAINER, CPUSet.of(0, 1))
    assert tree.effective(CONTAINER) == CPUSet.of(0, 1)

    bring(tree, CONTAINER, CPUSet.of(2))

    assert tree.effective(CONTAINER) == CPUSet.of(2)
    assert tree.writes[-1] == Write(POD, CPUSet.of(2))
