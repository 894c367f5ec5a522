"""What Allocate has promised to pods that are not known yet, and for how long."""

from __future__ import annotations

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.promises import LAST_S, Expiry, Maker, gave, unconfirmed
from tests import builders
from tests.unit.manager.laptop import MACHINE, cpus_of, health, manager

POOL = builders.resource("exclusive_a")


class TestAChangeOfPools:
    """Allocate has answered, the pod is not known yet, and the CPU moves to another pool."""

    MOVED = NodePools.of(Pool.named("exclusive_b", "2"), Pool.named("default", "0-1,4-5"))

    def test_a_promised_cpu_has_no_other_owner(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2"])
        node.allocate("exclusive_a", ["4"])
        node.reconfigure(self.MOVED, MACHINE.topology())

        assert health(node, "exclusive_a") == {"2": True, "4": True}
        assert health(node, "exclusive_b") == {"2": False}
        assert cpus_of(node, "nobody") == "0-1"

    def test_it_goes_to_the_pod_that_turns_up_with_it(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2"])
        node.reconfigure(self.MOVED, MACHINE.topology())
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))
        assert cpus_of(node, "p") == "2"
        assert node.snapshot().facts.promises == ()

        node.observe(pods=[])
        assert health(node, "exclusive_b") == {"2": True}

    def test_what_is_left_of_it_stays_promised(self) -> None:
        node = manager()
        node.allocate("exclusive_a", ["2", "4"])
        pod = builders.pod("p", builders.container(exclusive_a=1))
        node.observe(pods=[pod])
        node.accept(builders.given(pod, exclusive_a="2"))
        assert [one.ids for one in node.snapshot().facts.promises] == [{"4"}]

    def test_it_can_be_forgotten(self) -> None:
        node = manager()
        node.promise(builders.resource("exclusive_a"), ["2"])
        until = node.promised_until()
        node.promise(builders.resource("exclusive_a"), ["4"])
        node.reconfigure(self.MOVED, MACHINE.topology())

        node.release(until)

        assert health(node, "exclusive_b") == {"2": True}
        assert health(node, "exclusive_a") == {"4": True}


def test_each_promise_has_a_higher_number() -> None:
    maker = Maker()
    assert maker.last == 0
    made = [maker.make(POOL, [one], CPUSet()) for one in ("2", "4")]
    assert [each.number for each in made] == [1, 2]
    assert maker.last == 2


def test_a_record_confirms_the_devices_of_its_resource_alone() -> None:
    maker = Maker()
    made = (
        maker.make(POOL, ["2", "4"], CPUSet()),
        maker.make(builders.resource("exclusive_b"), ["2"], CPUSet()),
    )
    found = builders.given(builders.pod("p"), exclusive_a="2")
    left = unconfirmed(made, found)
    assert [(each.number, each.ids) for each in left] == [(1, frozenset("4")), (2, frozenset("2"))]


@pytest.mark.parametrize(
    ("ids", "has", "other_has", "given"),
    [
        pytest.param("2,4", "", "", True, id="exactly the devices of an answer"),
        pytest.param("2", "", "", False, id="fewer"),
        pytest.param("2,4,6", "", "", False, id="more"),
        pytest.param("2,4,6", "6", "", True, id="with those of an init container"),
        pytest.param("6", "6", "", True, id="those of an init container alone"),
        pytest.param("2,4", "", "4", False, id="another pod has one"),
    ],
)
def test_an_answer_gave_exactly_its_devices(
    ids: str, has: str, other_has: str, given: bool
) -> None:
    promise = Maker().make(POOL, ["2", "4"], CPUSet())
    mine = builders.given(builders.pod("p"), exclusive_a=has) if has else {}
    other = builders.given(builders.pod("q"), exclusive_a=other_has) if other_has else {}
    known = {**mine, **other}
    assert gave([promise], known, "p-uid", POOL, frozenset(ids.split(","))) is given


class TestExpiry:
    def test_each_promise_lasts_for_its_time(self) -> None:
        expiry = Expiry()
        assert expiry.expired(1, 100.0) == 0
        assert expiry.expired(3, 110.0) == 0
        assert expiry.expired(3, 100.0 + LAST_S - 1) == 0
        assert expiry.expired(3, 100.0 + LAST_S) == 1
        assert expiry.expired(3, 110.0 + LAST_S) == 3
        assert expiry.expired(3, 200.0 + LAST_S) == 0

    def test_after_a_long_pause_all_that_are_due_expire_at_once(self) -> None:
        expiry = Expiry()
        expiry.expired(1, 100.0)
        expiry.expired(2, 101.0)
        assert expiry.expired(3, 1000.0) == 2
