"""Which containers need no look at once after the runtime has started them."""

from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from cpupool.core.workloads import ContainerID
from cpupool.enforce.mover import Mover
from cpupool.telemetry.metrics import Metrics
from tests import builders
from tests.runtimes import without_runtime
from tests.setters import EVERYTHING, Node, ids


def starts_right(node: Node, pod: str) -> bool:
    mover = Mover(
        node.manager,
        node.kernel,
        without_runtime(),
        Metrics(),
        beat=lambda: None,
        refused=lambda: None,
        now_s=lambda: 0.0,
    )
    return mover.starts_right(node.path(pod), (f"{pod}-uid", ContainerID("main-id")))


def test_one_that_shares_starts_right_on_the_cpus_that_it_must_have() -> None:
    node = Node()
    node.run("plain")
    node.setter.sweep()
    assert starts_right(node, "plain")
    node.kernel.write(node.path("plain"), CPUSet.parse(EVERYTHING))
    assert not starts_right(node, "plain")


def test_an_owner_is_looked_at_in_any_case() -> None:
    node = Node()
    node.run("owner", builders.container(exclusive_a=1))
    node.source.saved = {"owner": {"exclusive_a": ids("2")}}
    node.setter.sweep()
    assert not starts_right(node, "owner")


def test_one_that_has_ended_is_looked_at() -> None:
    node = Node()
    node.run("plain")
    node.setter.sweep()
    node.kernel.remove(node.path("plain"))
    assert not starts_right(node, "plain")
