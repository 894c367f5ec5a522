"""Plans and repairs on any tree: lawful at each step, exact at the end, or as if never begun."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CgroupWriteRejected
from cpupool.enforce.apply import bring
from cpupool.enforce.write_order import plan
from cpupool.host.cgroupfs import CgroupVersion
from tests.cgroups import KernelModel, rejected

CONTAINER = "kubepods/pod1/c"
NESTED = (f"{CONTAINER}/a", f"{CONTAINER}/a/x", f"{CONTAINER}/a/y", f"{CONTAINER}/b")
CPUS = range(6)


def some_of(cpus: CPUSet, smallest: int = 1) -> st.SearchStrategy[CPUSet]:
    return st.sets(st.sampled_from(sorted(cpus)), min_size=smallest).map(CPUSet)


@st.composite
def v1_trees(draw: st.DrawFn) -> KernelModel:
    """Draw a tree in which every child lies within its parent; nested ones may have no CPU yet."""
    model = KernelModel(CgroupVersion.V1, {}, online="0-5")
    room = model.online
    for path in ("kubepods", "kubepods/pod1", CONTAINER):
        room = draw(some_of(room))
        model.make(path, str(room))
    for path in NESTED:
        room = model.sets[path.rpartition("/")[0]]
        model.make(path, str(draw(some_of(room, smallest=0)) if room else room))
    return model


@st.composite
def v2_trees(draw: st.DrawFn) -> KernelModel:
    """Draw a tree in which a container's ancestors have room for anything, or inherit."""
    model = KernelModel(CgroupVersion.V2, {"kubepods": "0-5", "kubepods/pod1": ""}, online="0-5")
    for path in (CONTAINER, *NESTED):
        model.make(path, str(draw(some_of(model.online, smallest=0))))
    return model


wants = some_of(CPUSet(CPUS))
trees = st.one_of(v1_trees(), v2_trees())


def execute(tree: KernelModel, want: CPUSet) -> None:
    for step in plan(*tree.read(CONTAINER), want):
        tree.write(step.path, step.cpus)


@given(tree=trees, want=wants)
def test_each_step_of_a_plan_is_lawful_and_the_last_one_ends_at_the_wanted_set(
    tree: KernelModel, want: CPUSet
) -> None:
    before = dict(tree.sets)
    execute(tree, want)
    assert tree.effective(CONTAINER) == tree.sets[CONTAINER] == want
    assert all(tree.effective(path) <= want for path in NESTED)
    for path in ("kubepods", "kubepods/pod1"):
        assert before[path] <= tree.sets[path]
    assert [path for path in NESTED if bool(tree.sets[path]) != bool(before[path])] == []


@given(tree=trees, want=wants)
def test_a_plan_that_was_carried_out_leaves_nothing_to_plan(
    tree: KernelModel, want: CPUSet
) -> None:
    execute(tree, want)
    assert plan(*tree.read(CONTAINER), want) == ()


@given(tree=v1_trees(), want=wants, number=st.integers(1, 12), vanishing=st.sampled_from(NESTED))
def test_a_repair_withstands_a_nested_cgroup_that_vanishes_at_any_write(
    tree: KernelModel, want: CPUSet, number: int, vanishing: str
) -> None:
    tree.before_write[number] = lambda: tree.remove(vanishing)
    bring(tree, CONTAINER, want)
    assert tree.effective(CONTAINER) == want


@given(tree=v1_trees(), want=wants, numbers=st.sets(st.integers(1, 12), max_size=2))
def test_a_repair_gets_there_though_two_writes_are_refused(
    tree: KernelModel, want: CPUSet, numbers: set[int]
) -> None:
    for number in numbers:
        tree.before_write[number] = refuse
    bring(tree, CONTAINER, want)
    assert tree.effective(CONTAINER) == want


@given(tree=v1_trees(), want=wants, stubborn=st.sampled_from(("kubepods", CONTAINER, *NESTED)))
def test_a_repair_that_is_refused_for_good_leaves_the_tree_as_it_was(
    tree: KernelModel, want: CPUSet, stubborn: str
) -> None:
    before = dict(tree.sets)
    touches = stubborn in {step.path for step in plan(*tree.read(CONTAINER), want)}
    tree.refusing.add(stubborn)
    if touches:
        with pytest.raises(CgroupWriteRejected) as caught:
            bring(tree, CONTAINER, want)
        assert (caught.value.path, caught.value.errno) == (stubborn, errno.EIO)
        assert tree.sets == before
    else:
        bring(tree, CONTAINER, want)
        assert tree.effective(CONTAINER) == want


def refuse() -> None:
    raise rejected(CONTAINER, errno.EBUSY)
