"""When the plugin connects: with endless churn and a pod that is stuck, by the bound."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cgroups import FoundContainer
from cpupool.core.errors import HostError
from cpupool.core.names import Names
from cpupool.core.workloads import ContainerID
from cpupool.manager.manager import Manager
from cpupool.runtime.nri.adapter import NRIRuntime
from cpupool.runtime.nri.connection import Launch
from cpupool.runtime.nri.wait_before_connecting import ConnectionWait, WaitRules
from cpupool.telemetry.metrics import Metrics
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cpupool.core.workloads import Pod

NOW_S = 1_800_000_000.0
"""The wall clock's when the monotonic one is at 0."""
BOUND_S = 30.0
LATE_S = 5.0


@dataclass
class Node:
    """What a plugin sees before it connects; `passed_s` is its clock."""

    path: Path
    bound_s: float = BOUND_S
    launch: Launch | None = None
    passed_s: float = 0.0
    set_s: float = 0.0
    """How far the wall clock has been set forward."""
    alive: set[str] = field(default_factory=set)
    """The pods with containers."""
    readable: bool = True
    looks: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    manager: Manager = field(default_factory=Manager)

    def __post_init__(self) -> None:
        runtime = NRIRuntime(
            self.path,
            Names(),
            look=self.look,
            allows=lambda key, cpus: self.manager.snapshot().allows(key, cpus),
            launch=self.launch,
        )
        self.wait = ConnectionWait(
            self.manager,
            runtime,
            found=self.found,
            rules=WaitRules(self.bound_s, "default/self"),
            look=self.look,
            metrics=self.metrics,
            now_s=lambda: self.passed_s,
            time_s=lambda: NOW_S + self.passed_s + self.set_s,
        )

    def look(self) -> None:
        self.looks += 1

    def found(self) -> Iterator[FoundContainer]:
        if not self.readable:
            raise HostError("no cgroups")
        for name in sorted(self.alive):
            yield FoundContainer(f"{name}-uid", f"{name}-id", f"{name}/c", "0")
            yield FoundContainer(f"{name}-uid", "sandbox", f"{name}/s", "0")

    def has(self, *pods: Pod) -> None:
        """Let the API server list pods, each with a container that runs."""
        self.alive = {pod.name for pod in pods}
        self.manager.observe(pods=list(pods))

    def metric(self) -> str:
        lines = self.metrics.render()[1].decode().splitlines()
        name = "cpupool_nri_waits_until_timestamp_seconds"
        return "\n".join(line for line in lines if line.startswith(name))


def running(name: str) -> Pod:
    made = builders.container()
    return builders.pod(name, replace(made, id=ContainerID(f"{name}-id")))


def ending(name: str, grace_s: float) -> Pod:
    """Make a pod that is being deleted, at `NOW_S`."""
    return replace(running(name), ending=True, ends_s=NOW_S + grace_s)


@pytest.fixture
def path(folder: Path) -> Iterator[Path]:
    with listening(folder / "nri.sock"):
        yield folder / "nri.sock"


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


@pytest.mark.parametrize("set_s", [-3600.0, 25.0, 3600.0])
def test_a_wall_clock_that_is_set_does_not_change_the_bound(path: Path, set_s: float) -> None:
    """No pause would let it look again as fast as it can, until the bound."""
    node = Node(path)
    node.has(ending("slow", 1e6))
    assert node.wait.pause_s() == BOUND_S
    node.passed_s, node.set_s = 10.0, set_s
    assert node.wait.pause_s() == BOUND_S - 10
    node.passed_s = BOUND_S
    assert node.wait.pause_s() == 0


def test_it_waits_for_the_pod_that_ends_last_and_says_so(path: Path) -> None:
    node = Node(path)
    node.has(running("stays"), ending("soon", 3), ending("later", 12))
    assert node.wait.pause_s() == 12 + LATE_S
    assert node.wait.waits == "waits for default/later until 2027-01-15T08:00:17Z"
    shown = f'cpupool_nri_waits_until_timestamp_seconds{{pod="default/later"}} {NOW_S + 17:.9e}'
    assert node.metric() == shown
    assert node.looks == 1

    node.passed_s = 2.0
    assert node.wait.pause_s() == 15.0
    assert node.looks == 1, "nothing is new"

    node.alive = {"stays", "soon"}
    assert node.wait.pause_s() == 6.0
    assert node.wait.waits.startswith("waits for default/soon ")
    node.alive = {"stays"}
    assert node.wait.pause_s() == 0.0
    assert (node.wait.waits, node.metric(), node.looks) == ("", "", 3)


def test_it_waits_for_nothing_that_has_ended_or_is_stuck_or_not_known_or_its_own(
    path: Path,
) -> None:
    node = Node(path)
    assert node.wait.pause_s() == 0.0, "no pod is known"
    node.has(running("stays"))
    assert node.wait.pause_s() == 0.0
    node.has(ending("stuck", -LATE_S))
    assert node.wait.pause_s() == 0.0
    node.has(ending("self", 10))
    assert node.wait.pause_s() == 0.0
    node.has(replace(ending("odd", 10), ends_s=None))
    assert node.wait.pause_s() == 0.0
    node.has(ending("over", 10))
    node.alive = set()
    assert node.wait.pause_s() == 0.0
    node.has(ending("hidden", 10))
    node.readable = False
    assert node.wait.pause_s() == 0.0
    node.readable = True
    assert node.wait.pause_s() == 10 + LATE_S


def test_it_does_not_wait_where_that_is_switched_off_or_the_runtime_has_started_it(
    path: Path,
) -> None:
    for node in (Node(path, bound_s=0.0), Node(path, launch=Launch(0, "cpupool", "50"))):
        node.has(ending("slow", 600))
        assert node.wait.pause_s() == 0.0
        assert node.wait.waits == ""


def test_without_a_socket_it_does_not_wait_and_a_runtime_that_starts_now_is_met(
    folder: Path,
) -> None:
    path = folder / "nri.sock"
    node = Node(path)
    node.has(ending("slow", 600))
    assert node.wait.pause_s() == 0.0, "the attempt says what is wrong"
    with listening(path):
        assert node.wait.pause_s() == 0.0, "it stops no container yet"
        node.wait.begin_anew()
        assert node.wait.pause_s() == BOUND_S, "the connection to the same runtime is lost"
        path.unlink()
        with listening(path):
            assert node.wait.pause_s() == 0.0, "the next runtime"
            assert node.wait.waits == ""


def test_after_a_connection_the_bound_counts_anew(path: Path) -> None:
    node = Node(path)
    node.has(ending("slow", 600))
    assert node.wait.pause_s() == BOUND_S
    node.passed_s = BOUND_S
    assert node.wait.pause_s() == 0.0
    node.passed_s = BOUND_S + 10
    assert node.wait.pause_s() == 0.0, "the attempt has failed"
    node.wait.begin_anew()
    assert node.wait.pause_s() == BOUND_S


def test_with_a_pod_that_is_stuck_for_hours_it_connects_at_once(path: Path) -> None:
    node = Node(path)
    node.has(ending("stuck", -4 * 3600), ending("slow", 3))
    assert node.wait.pause_s() == 3 + LATE_S
    node.passed_s = 3 + LATE_S
    assert node.wait.pause_s() == 0.0


def _quarters(number: int) -> float:
    """Return seconds that a clock counts without rounding."""
    return number / 4


@given(
    st.lists(
        st.tuples(
            st.integers(1, 80).map(_quarters),  # until the next look
            st.integers(-80, 16_000).map(
                _quarters
            ),  # the rest of the grace period of the pod that ends then
            st.booleans(),  # whether its container is there
        ),
        max_size=40,
    ),
    st.sampled_from((1.0, BOUND_S, 600.0)),
)
def test_no_churn_of_pods_postpones_it(
    tmp_path_factory: pytest.TempPathFactory,
    churn: list[tuple[float, float, bool]],
    bound_s: float,
) -> None:
    path = tmp_path_factory.mktemp("c") / "nri.sock"
    path.touch()
    node = Node(path, bound_s=bound_s)
    for number, (pause_s, rest_s, alive) in enumerate(churn):
        node.has(ending(f"p{number}", node.passed_s + rest_s))
        node.alive = node.alive if alive else set()
        asked_s = node.wait.pause_s()
        blocks = alive and rest_s + LATE_S > 0
        assert (asked_s > 0) == (blocks and node.passed_s < bound_s)
        assert asked_s <= max(0.0, bound_s - node.passed_s)
        assert bool(node.wait.waits) == (asked_s > 0)
        if asked_s == 0:
            return
        node.passed_s += pause_s
