"""The annotations by which an agent recognises what an earlier agent has given."""

from __future__ import annotations

import pytest

from cpupool.core.assignments import CPUAssignment, Placement, remembering
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerID, RuntimeContainer

NAMES = Names("example.com")
CHOSEN, ANSWERED = "example.com/cpus-chosen", "example.com/cpus-answered"
KNOWN = RuntimeContainer(ContainerID("c1"), "uid", "default", "web", "main")


@pytest.mark.parametrize(
    ("placement", "annotations"),
    [
        (Placement.POLICY, {CHOSEN: "2-3"}),
        (Placement.PLUGIN, {ANSWERED: "2-3"}),
        # The kubelet's record of devices, and no annotation, tells the next agent of these.
        (Placement.POOLS, {}),
    ],
)
def test_own_cpus_are_noted_with_those_that_are_offline(
    placement: Placement, annotations: dict[str, str]
) -> None:
    assigned = CPUAssignment(placement, CPUSet.of(2), CPUSet.of(0), offline=CPUSet.of(3))

    assert assigned.annotations(NAMES) == annotations


@pytest.mark.parametrize("placement", [Placement.POLICY, Placement.PLUGIN, Placement.DEFAULT])
def test_without_own_cpus_nothing_is_noted(placement: Placement) -> None:
    assert CPUAssignment(placement, shared=CPUSet.of(0)).annotations(NAMES) == {}


def remembered(
    annotations: dict[str, str], listed: str, of_pod: dict[str, str] | None = None
) -> tuple[str, str, str]:
    """Return the CPUs that count as chosen, as answered, and as taken from the answered ones."""
    known = remembering(KNOWN, annotations, of_pod or {}, listed, NAMES)
    assert (known.id, known.pod, known.name) == (KNOWN.id, KNOWN.pod, KNOWN.name)
    return str(known.chosen), str(known.answered), str(known.narrowed)


def test_what_was_noted_is_remembered_where_the_runtimes_list_agrees() -> None:
    assert remembered({CHOSEN: "2-3"}, "2-3") == ("2-3", "", "")
    assert remembered({ANSWERED: "2-3"}, "2-3") == ("", "2-3", "")


def test_the_runtimes_list_may_lack_cpus_and_names_no_others() -> None:
    assert remembered({CHOSEN: "2-3"}, "2") == ("2-3", "", "")
    assert remembered({ANSWERED: "2-4"}, "3") == ("", "2-4", "2,4")
    assert remembered({CHOSEN: "2-3", ANSWERED: "2-3"}, "1-2") == ("", "", "")


@pytest.mark.parametrize("listed", ["", "no list"])
def test_nothing_is_remembered_without_a_list_of_the_runtime(listed: str) -> None:
    assert remembered({CHOSEN: "2-3", ANSWERED: "2-3"}, listed) == ("", "", "")


def test_what_the_pods_author_may_have_written_does_not_count() -> None:
    both = {CHOSEN: "2-3", ANSWERED: "2-3"}

    assert remembered(both, "2-3", {CHOSEN: "2-3"}) == ("", "2-3", "")
    assert remembered(both, "2-3", {ANSWERED: "5"}) == ("2-3", "", "")


@pytest.mark.parametrize("written", ["", "2-", "x"])
def test_an_annotation_that_is_no_list_does_not_count(written: str) -> None:
    assert remembered({CHOSEN: written, ANSWERED: written}, "2") == ("", "", "")
