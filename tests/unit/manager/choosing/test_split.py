"""A pod of Koordinator's classes whose containers have parts of its CPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.grants import WHOLE_POD
from cpupool.core.workloads import ContainerID, ContainerKind
from cpupool.manager.manager import Manager
from cpupool.wire.cpu_manager_state import State
from tests import builders
from tests.runtimes import reported
from tests.unit.manager.choosing.test_koordinator import MACHINE, POOLS, node, own, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def parted(cpus: str = "", *containers: tuple[str, ContainerKind, int], split: bool = True) -> Pod:
    """Make an LSR pod.

    Args:
        cpus: what a scheduler has assigned.
        containers: name, kind and milli-CPUs.
        split: whether its containers have parts.
    """
    made = (
        replace(builders.container(name, kind, cpu=milli), request_milli=milli)
        for name, kind, milli in containers
    )
    return replace(pod("lsr", cpus=cpus, split=split), containers=tuple(made))


def cpus(manager: Manager, *names: str) -> list[str]:
    """Return the CPUs of containers of the pod."""
    snapshot = manager.snapshot()
    return [str(snapshot.assignment(("lsr-uid", ContainerID(name))).cpus) for name in names]


TWO = (("one", APP, 1000), ("two", APP, 2000))


class TestParts:
    @pytest.mark.parametrize(
        ("containers", "assigned", "parts"),
        [
            pytest.param(TWO, "2-3,18", ["3", "2,18"], id="a whole core where possible"),
            pytest.param(TWO, "1-3", ["1", "2-3"], id="no whole core"),
            pytest.param(
                (("one", APP, 2000), ("half", APP, 500), ("too", APP, 500)),
                *("2-3,18", ["2,18", "3", "3"]),
                id="containers without whole CPUs share the rest",
            ),
            pytest.param(
                (("one", APP, 2000), ("none", APP, 0)),
                *("2,18", ["2,18", "2,18"]),
                id="without a rest they are on all",
            ),
            pytest.param(
                (("init", INIT, 3000), ("side", SIDECAR, 1000), ("main", APP, 2000)),
                *("2-3,18", ["2-3,18", "3", "2,18"]),
                id="an init container leaves its CPUs",
            ),
            pytest.param(
                (("side", SIDECAR, 1000), ("init", INIT, 2000), ("main", APP, 2000)),
                *("2-3,18", ["3", "2,18", "2,18"]),
                id="a sidecar does not",
            ),
            pytest.param(
                (("init", INIT, 500), ("main", APP, 1000), ("half", APP, 500), ("too", APP, 500)),
                *("2,18", ["2,18", "2", "18", "18"]),
                id="an init container without whole CPUs is on all",
            ),
        ],
    )
    def test_each_container_has_its_own_size(
        self,
        containers: tuple[tuple[str, ContainerKind, int], ...],
        assigned: str,
        parts: list[str],
    ) -> None:
        manager = node(parted(assigned, *containers))

        assert cpus(manager, *(f"{name}-id" for name, _, _ in containers)) == parts
        assert cpus(manager, "the sandbox") == [assigned]
        assert own(manager) == {"lsr": assigned}

    def test_cpus_that_the_node_has_chosen_are_split_too(self) -> None:
        manager = node(parted("", ("one", APP, 2000), ("two", APP, 2000)))

        one, two = (CPUSet.parse(text) for text in cpus(manager, "one-id", "two-id"))
        siblings = MACHINE.topology().with_siblings
        assert (siblings(one), siblings(two)) == (one, two)
        assert CPUSet.parse(own(manager)["lsr"]) == one | two
        (reason,) = [
            step
            for step in manager.snapshot().resolution.grants.chosen["lsr-uid"].reason("one")
            if step.rule == "cpus-per-container"
        ]
        assert reason.left == one | two

    def test_an_ephemeral_container_is_on_all(self) -> None:
        manager = node(parted("2-3,18", *TWO, ("debug", ContainerKind.EPHEMERAL, 0)))

        assert cpus(manager, "debug-id") == ["2-3,18"]

    def test_an_annotation_that_comes_or_goes_moves_no_container(self) -> None:
        manager = node(parted("2-3,18", *TWO))
        manager.observe(pods=(parted("2-3,18", *TWO, split=False),))
        assert cpus(manager, "one-id", "two-id") == ["3", "2,18"]

        manager = node(parted("2-3,18", *TWO, split=False))
        manager.observe(pods=(parted("2-3,18", *TWO),))
        assert cpus(manager, "one-id", "two-id") == ["2-3,18", "2-3,18"]


class TestRestart:
    def restarted(
        self, has: Pod, entries: Mapping[str, str], living: Mapping[str, str] | None = None
    ) -> Manager:
        manager = Manager()
        manager.reconfigure(POOLS, MACHINE.topology())
        manager.observe(pods=(has,))
        manager.observe_containers(
            replace(reported("lsr-uid", name), chosen=CPUSet.parse(text))
            for name, text in (living or {}).items()
        )
        recorded = {"lsr-uid": {name: CPUSet.parse(text) for name, text in entries.items()}}
        manager.adopt((), State("koordinator", entries=recorded))
        return manager

    def test_the_record_keeps_the_parts(self) -> None:
        has = parted("", *TWO)

        manager = self.restarted(has, {WHOLE_POD: "9,10,26", "one": "9", "two": "10,26"})

        assert cpus(manager, "one-id", "two-id", "the sandbox") == ["9", "10,26", "9-10,26"]

    def test_the_annotations_of_living_containers_do(self) -> None:
        has = parted("", *TWO)

        manager = self.restarted(has, {}, {"one": "9", "two": "10,26"})

        assert cpus(manager, "one-id", "two-id", "the sandbox") == ["9", "10,26", "9-10,26"]

    def test_a_part_outside_the_pods_cpus_is_no_part(self) -> None:
        has = parted("", *TWO)

        manager = self.restarted(has, {WHOLE_POD: "9,10,26", "one": "11", "two": "10,26"})

        assert cpus(manager, "one-id", "two-id") == ["9-10,26", "10,26"]

    def test_a_pod_that_shares_its_set_has_no_parts(self) -> None:
        has = parted("", *TWO, split=False)

        manager = self.restarted(has, {}, {"one": "9-11", "two": "9-11"})

        assert manager.snapshot().resolution.grants.chosen["lsr-uid"].parts == {
            WHOLE_POD: CPUSet.parse("9-11")
        }
