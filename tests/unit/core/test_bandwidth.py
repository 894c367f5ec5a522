from __future__ import annotations

import pytest

from cpupool.core.bandwidth import PERIOD_US, UNLIMITED_US, Bandwidth, Limit, settle_pod

NONE = Bandwidth()
LEAST_US = 1_000
"""min_cfs_quota_period of the kernel (kernel/sched/core.c)."""


def shared(milli: int) -> Limit:
    return Limit(milli, own_milli=milli)


def mixed(own_milli: int, shared_cpus: int) -> Limit:
    """Give the limit of a container with CPUs of the kubelet's and shared ones."""
    return Limit(own_milli + 1000 * shared_cpus, or_unlimited=True, own_milli=own_milli)


@pytest.mark.parametrize(
    ("bandwidth", "written"),
    [(Bandwidth(200_000), "200000 100000"), (NONE, "max 100000"), (Bandwidth(-1, 50), "max 50")],
)
def test_a_bandwidth_is_written_as_version_2_does(bandwidth: Bandwidth, written: str) -> None:
    assert str(bandwidth) == written


@pytest.mark.parametrize(
    ("milli", "quota_us"),
    [
        (1000, 100_000),
        (1500, 150_000),
        (333, 33_300),
        (10, LEAST_US),
        (9, LEAST_US),
        (0, LEAST_US),
        (None, UNLIMITED_US),
    ],
)
def test_milli_cpus_are_the_same_share_of_the_period(milli: int | None, quota_us: int) -> None:
    assert NONE.of_milli(milli) == Bandwidth(quota_us)


def test_a_share_of_an_odd_period_is_rounded_as_the_kubelet_does() -> None:
    assert Bandwidth(1, 7_777).of_milli(333) == Bandwidth(2_589, 7_777)


@pytest.mark.parametrize(
    ("limit", "found", "right"),
    [
        pytest.param(mixed(2000, 2), Bandwidth(200_000), Bandwidth(400_000), id="OpenShift's own"),
        pytest.param(mixed(2000, 2), Bandwidth(400_000), Bandwidth(400_000), id="is right"),
        pytest.param(mixed(2000, 2), Bandwidth(600_000), Bandwidth(400_000), id="is too much"),
        pytest.param(mixed(2000, 2), NONE, NONE, id="the kubelet has lifted it"),
        pytest.param(mixed(2000, 0), Bandwidth(400_000), Bandwidth(200_000), id="switched off"),
        pytest.param(Limit(None), Bandwidth(200_000), NONE, id="exclusive"),
        pytest.param(Limit(None), Bandwidth(-1, 50_000), Bandwidth(-1, 50_000), id="lifted"),
        pytest.param(shared(500), NONE, Bandwidth(50_000), id="shared"),
        pytest.param(shared(500), Bandwidth(1, 10_000), Bandwidth(5_000, 10_000), id="period"),
    ],
)
def test_a_container_has_what_its_cpus_are_worth(
    limit: Limit, found: Bandwidth, right: Bandwidth
) -> None:
    assert limit.settle(found) == right
    assert limit.settle(right) == right


@pytest.mark.parametrize(
    ("limit", "asked", "start"),
    [
        pytest.param(Limit(None), Bandwidth(200_000), NONE, id="a limit is lifted"),
        pytest.param(Limit(None), NONE, NONE, id="none to lift"),
        pytest.param(Limit(None), Bandwidth(1, 50), Bandwidth(-1, 50), id="in its period"),
        pytest.param(shared(500), NONE, Bandwidth(50_000), id="no limit was asked for"),
        pytest.param(shared(500), Bandwidth(50_001), Bandwidth(50_000), id="a little too much"),
        pytest.param(shared(500), Bandwidth(40_000), Bandwidth(40_000), id="less"),
        pytest.param(
            shared(500), Bandwidth(6_000, 10_000), Bandwidth(5_000, 10_000), id="a shorter period"
        ),
        pytest.param(
            mixed(2000, 2), Bandwidth(200_000), Bandwidth(200_000), id="no more than the pod has"
        ),
        pytest.param(mixed(2000, 2), NONE, NONE, id="the kubelet lifts it"),
    ],
)
def test_a_container_is_created_with_no_more_than_asked_or_without_a_limit(
    limit: Limit, asked: Bandwidth, start: Bandwidth
) -> None:
    assert limit.start(asked) == start


@pytest.mark.parametrize(
    ("found", "base_milli", "containers", "lifts", "right"),
    [
        pytest.param(200, 2000, [(Limit(None), -1)], True, -1, id="a container is lifted"),
        pytest.param(200, 2000, [(shared(500), 50), (Limit(None), 9)], True, -1, id="one of two"),
        pytest.param(-1, 2000, [], True, 200, id="it has ended"),
        pytest.param(-1, 2000, [(shared(500), 50)], True, 200, id="it has ended, another not"),
        pytest.param(-1, None, [], True, -1, id="the kubelet gives no limit"),
        pytest.param(-1, 2000, [(shared(500), 50)], False, -1, id="somebody else has lifted it"),
        pytest.param(200, 2000, [(mixed(2000, 2), 200)], False, 400, id="OpenShift's own"),
        pytest.param(300, 3000, [(mixed(2000, 2), 400)], False, 500, id="beside another's limit"),
        pytest.param(-1, 2000, [(mixed(2000, 2), -1)], False, -1, id="the kubelet has lifted it"),
        pytest.param(200, 2000, [(mixed(2000, 2), -1)], False, 400, id="and not its pod"),
        pytest.param(400, 2000, [], False, 200, id="raised, and ended"),
        pytest.param(400, 2000, [(mixed(2000, 0), 400)], False, 200, id="switched off"),
        pytest.param(150, 2000, [(shared(500), 50)], False, 200, id="a foreign hand"),
        pytest.param(150, 2000, [(Limit(500), 50)], False, 200, id="no limit of its own"),
        pytest.param(100, None, [(shared(500), 50)], False, 100, id="unknown, and enough"),
        pytest.param(100, None, [(mixed(1000, 1), 50)], False, -1, id="unknown, and too little"),
        pytest.param(2, 10, [(shared(5), 1), (shared(5), 1)], False, 2, id="the kernel's least"),
    ],
)
def test_a_pod_has_room_for_its_containers_and_else_what_the_kubelet_gives(
    found: int, base_milli: int | None, containers: list[tuple[Limit, int]], lifts: bool, right: int
) -> None:
    def of(thousands: int) -> Bandwidth:
        return Bandwidth(thousands * 1_000 if thousands >= 0 else UNLIMITED_US)

    them = [(limit, of(has)) for limit, has in containers]
    assert settle_pod(of(found), base_milli, them, lifts=lifts) == of(right)
    assert settle_pod(of(right), base_milli, them, lifts=lifts) == of(right)


def test_rounding_in_two_periods_leaves_a_pod_no_less_than_its_container() -> None:
    container = shared(1_500)
    pod = settle_pod(Bandwidth(1_000, 7_777), 1_500, [(container, NONE)], lifts=False)
    assert pod.holds(container.settle(NONE))
    assert pod == Bandwidth(11_666, 7_777)


@pytest.mark.parametrize(
    ("above", "below", "holds"),
    [
        (NONE, NONE, True),
        (NONE, Bandwidth(200_000), True),
        (Bandwidth(200_000), NONE, False),
        (Bandwidth(200_000), Bandwidth(20_000, 10_000), True),
        (Bandwidth(200_000), Bandwidth(20_001, 10_000), False),
    ],
)
def test_shares_are_compared_whatever_their_periods(
    above: Bandwidth, below: Bandwidth, holds: bool
) -> None:
    assert above.holds(below) is holds


def test_the_usual_period_is_the_kubelets() -> None:
    assert Bandwidth(1).period_us == PERIOD_US == 100_000
