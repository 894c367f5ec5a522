"""Compaction in virtual time: a pod that waits for CPUs gets them after moves of other pods.

Two pods leave 4 and 8 CPUs free on the two NUMA nodes, and a pod of 12 CPUs needs one node.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerRef, CPUMoves
from cpupool.host.root import HostRoot
from tests.moving import AGE_S, BEGUN_S, NOTICE_S, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

ANY = CPUMoves.ANY


class Watched(Node):
    """A node on which no CPU ever has two owners, and only one container changes at a time."""

    dies: Callable[[Watched], bool] | None = None
    """When the agent is killed."""
    deaths = 0

    def sweep(self) -> None:
        super().sweep()
        seen = CPUSet()
        for cpus in self.kernel.values():
            assert seen.isdisjoint(cpus), "no CPU has two owners"
            seen |= cpus
        leaving = [one for one in self.own_cpus().values() if one.leaving]
        assert len(leaving) <= 1, "one container at a time"
        if self.dies and self.dies(self):
            self.dies, self.deaths = None, 1
            assigned = {ref: one.assigned for ref, one in self.own_cpus().items()}
            self.kill()
            assert {ref: self.wanted(ref.name) for ref in self.kernel} == self.kernel
            assert {ref: one.assigned for ref, one in self.own_cpus().items()} == assigned

    def leaves(self, name: str) -> bool:
        """Return whether a container gives CPUs back."""
        return bool(self.own_cpus()[ContainerRef(f"{name}-uid", name)].leaving)


@pytest.fixture
def node(folder: Path) -> Watched:
    made = Watched(folder)
    made.run("a", 6, ANY)
    made.run("gone", 4)
    made.run("c", 4, ANY)
    made.run("d", 4)
    made.settle()
    made.end("gone")
    made.until(1)
    made.run("late", 12)
    made.settle()
    return made


MOMENTS: Mapping[str, Callable[[Watched], bool]] = {
    "the first notice lasts": lambda node: node.leaves("a"),
    "the first container has moved": lambda node: (
        node.begun == 1 and node.cpus("a") == "11-13,27-29" and not node.leaves("a")
    ),
    "the second notice lasts": lambda node: node.leaves("c"),
    "the second container has moved": lambda node: (
        node.begun == 2 and node.cpus("c") == "14-15,30-31"
    ),
}


def test_a_pod_that_waits_starts_after_two_moves(node: Watched) -> None:
    assert (node.cpus("a"), node.cpus("c"), node.cpus("d")) == (
        "1-3,17-19",
        "6-7,22-23",
        "9-10,25-26",
    )
    node.until(AGE_S - 1)
    assert (node.cpus("late"), node.begun) == ("", 0)

    node.until(AGE_S + 1)
    # The container has its old and its new CPUs until its notice ends, and knows that.
    assert node.cpus("a") == "1-3,11-13,17-19,27-29"
    own = HostRoot.under(node.folder).own_folders
    told = json.loads((own / "a-uid/a/cpus.json").read_text())
    assert (told["cpus"], told["assigned"]) == (node.cpus("a"), "11-13,27-29")
    assert told["change"]["reason"] == "compact"
    assert told["change"]["removed"] == "1-3,17-19"
    assert (node.cpus("late"), node.begun) == ("", 1)

    node.until(AGE_S + NOTICE_S + 1)
    assert (node.cpus("a"), node.begun) == ("11-13,27-29", 2)
    node.until(AGE_S + 2 * NOTICE_S + 1)
    assert (node.cpus("c"), node.cpus("d")) == ("14-15,30-31", "9-10,25-26")
    assert node.cpus("late") == "1-6,17-22"


def test_every_move_is_explained(node: Watched) -> None:
    node.until(AGE_S + 1)
    why = "so that pod default/late can have its CPUs"
    what = f"container a moves from CPUs 1-3,17-19 to 11-13,27-29, {why}"
    (event,) = (each for each in node.heard.pods if each[1] == "CPUsMoved")
    assert event == (
        "a",
        "CPUsMoved",
        f"{what}; CPUs 1-3,17-19 leave after its notice",
    )
    (moved,) = node.manager.snapshot().resolution.view.chosen["a-uid"].resizes["a"]
    assert (moved.rule, moved.unix_s) == ("compaction", int(BEGUN_S + AGE_S))
    assert moved.what == f"it moved from CPUs 1-3,17-19 to 11-13,27-29, {why}"
    _, page = node.metrics.render()
    assert b"cpupool_cpu_manager_moves_total 1.0" in page


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_an_agent_that_is_killed_in_the_middle_loses_nothing(
    node: Watched, moment: Callable[[Watched], bool]
) -> None:
    node.dies = moment
    node.until(AGE_S + 4 * NOTICE_S)
    assert node.deaths == 1
    assert (node.cpus("late"), node.cpus("c"), node.begun) == ("1-6,17-22", "14-15,30-31", 2)


def test_a_pod_that_no_longer_waits_moves_nobody_else(node: Watched) -> None:
    node.until(AGE_S + 1)
    node.end("late")
    node.until(AGE_S + 10 * NOTICE_S)
    assert (node.cpus("a"), node.cpus("c"), node.begun) == ("11-13,27-29", "6-7,22-23", 1)
