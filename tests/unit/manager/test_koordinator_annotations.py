"""What koord-scheduler reads of a node with pools, a CPU manager policy, and reservations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cpupool.config.kubelet_settings import KubeletConfig
from cpupool.core.cpu_manager import CPUManager, StaticOptions
from cpupool.core.cpuset import CPUSet
from cpupool.core.node_topology import CPUModel
from cpupool.core.orchestration import NodeRules, Orchestration, QoS, Reservation, SystemCPUs
from cpupool.core.pools import NodePools, Pool
from cpupool.manager import koordinator_annotations
from cpupool.manager.manager import Manager
from cpupool.policies.koordinator.topology_annotations import EffectiveCPUManager, PodCPUs
from tests import builders
from tests.machines import MACHINES

if TYPE_CHECKING:
    from cpupool.policies.koordinator.shared_sets import SharedPool
    from cpupool.policies.koordinator.topology_annotations import Published

MACHINE = MACHINES["telco_2s_2n_16c32t"].topology()  # cores 0,16 to 7,23 and 8,24 to 15,31
OURS = "0-1,8-9,16-17,24-25"
LINES = (Pool.named("exclusive_a", "2-4"), Pool.named("default", OURS))
OPTIONS = StaticOptions(full_pcpus_only=True)
STATIC = CPUManager("static", reserved=CPUSet.parse("0,16"), options=OPTIONS)


def _manager(pools: NodePools | None = None) -> Manager:
    manager = Manager()
    manager.reconfigure(pools or NodePools.of(*LINES), MACHINE)
    manager.observe(pods=())
    return manager


def _published(
    manager: Manager,
    *,
    kubelet: KubeletConfig | None = None,
    reservation: Reservation | None = None,
    system: SystemCPUs | None = None,
) -> Published:
    rules = NodeRules(reservation or Reservation(), system or SystemCPUs())
    manager.observe(rules=rules)
    return koordinator_annotations.published(manager.snapshot(), CPUModel(), kubelet)


def _texts(pools: tuple[SharedPool, ...]) -> list[str]:
    return [str(pool.cpus) for pool in pools]


class TestPods:
    def test_a_pod_owns_the_cpus_of_its_devices(self) -> None:
        pod = builders.pod("dpdk", builders.container(exclusive_a=2))
        manager = _manager()
        manager.observe(pods=(pod,))
        manager.accept(builders.given(pod, exclusive_a="2,3"))

        found = _published(manager)

        assert found.pods == (PodCPUs("default", "dpdk", "dpdk-uid", CPUSet.parse("2-3")),)

    def test_a_pod_owns_the_cpus_that_the_policy_chose_and_they_leave_the_shared_sets(
        self,
    ) -> None:
        pod = builders.pod("own", builders.container(cpu=2000))
        manager = _manager(NodePools.of(*LINES, cpu_manager=STATIC))
        manager.adopt(())
        manager.observe(pods=(pod,))

        found = _published(manager)

        assert found.pods == (PodCPUs("default", "own", "own-uid", CPUSet.parse("1,17")),)
        assert _texts(found.pools.shared) == ["0,16", "8-9,24-25"]
        assert _texts(found.pools.best_effort) == ["0,16", "8-9,24-25"]

    @pytest.mark.parametrize(
        ("assigned", "published", "scheduled"),
        [("9,25", "", True), ("", "", False), ("", "8,24", True), ("", "2,18", False)],
    )
    def test_what_the_annotation_says_is_in_a_schedulers_books_already(
        self, assigned: str, published: str, scheduled: bool
    ) -> None:
        container = replace(builders.container(cpu=2000), request_milli=2000)
        told = Orchestration(
            QoS.LSR,
            prod=True,
            cpus=CPUSet.parse(assigned),
            published=CPUSet.parse(published),
        )
        pod = replace(builders.pod("lsr", container), orchestration=told)
        config = CPUManager("koordinator", reserved=CPUSet.parse("0,16"))
        manager = _manager(NodePools.of(*LINES, cpu_manager=config))
        manager.adopt(())
        manager.observe(pods=(pod,))

        found = _published(manager)

        assert [(each.name, each.scheduled) for each in found.pods] == [("lsr", scheduled)]
        assert found.manager == EffectiveCPUManager("none", {}, CPUSet.parse("0,16"))


class TestReserved:
    def test_cpus_outside_the_default_pool_are_reserved(self) -> None:
        found = _published(_manager())

        assert found.reserved == MACHINE.online - CPUSet.parse(OURS)
        assert _texts(found.pools.shared) == ["0-1,16-17", "8-9,24-25"]

    @pytest.mark.parametrize(
        ("reservation", "ours"),
        [
            pytest.param(Reservation(CPUSet.parse("1,9")), "1,9", id="a list"),
            pytest.param(Reservation(count=2), "0,16", id="a number: one core of ours"),
            pytest.param(Reservation(count=99), OURS, id="more than there are"),
        ],
    )
    def test_the_admins_reservation_comes_on_top(self, reservation: Reservation, ours: str) -> None:
        found = _published(_manager(), reservation=reservation)

        assert found.reserved & CPUSet.parse(OURS) == CPUSet.parse(ours)
        assert found.reserved >= MACHINE.online - CPUSet.parse(OURS)
        assert CPUSet.union(pool.cpus for pool in found.pools.shared) == CPUSet.parse(
            OURS
        ) - CPUSet.parse(ours)

    def test_shared_pods_do_not_run_on_exclusive_system_cpus(self) -> None:
        found = _published(_manager(), system=SystemCPUs(CPUSet.parse("8-9")))

        assert _texts(found.pools.shared) == ["0-1,16-17", "24-25"]
        assert found.reserved == MACHINE.online - CPUSet.parse(OURS)


class TestManager:
    def test_our_policy_takes_the_place_of_the_kubelets(self) -> None:
        manager = _manager(NodePools.of(*LINES, cpu_manager=STATIC))

        assert _published(manager).manager == EffectiveCPUManager(
            "static", {"full-pcpus-only": "true"}, CPUSet.parse("0,16")
        )

    @pytest.mark.parametrize(
        ("kubelet", "reserved"),
        [
            pytest.param(None, "", id="not known"),
            pytest.param(
                KubeletConfig(reserved_cpus=CPUSet.parse("0,2-7")), "0", id="a list with pools"
            ),
            pytest.param(
                KubeletConfig(system_reserved_milli=25_100), "0,16", id="pools, and 1.1 for daemons"
            ),
            pytest.param(KubeletConfig(system_reserved_milli=24_000), "", id="pools alone"),
            pytest.param(KubeletConfig(kube_reserved_milli=500), "", id="less than the pools"),
        ],
    )
    def test_under_none_the_kubelet_keeps_cpus_from_pods_beside_those_of_pools(
        self, kubelet: KubeletConfig | None, reserved: str
    ) -> None:
        found = _published(_manager(), kubelet=kubelet)

        assert found.manager == EffectiveCPUManager("none", {}, CPUSet.parse_or_empty(reserved))

    def test_the_kubelets_static_policy_keeps_its_options(self) -> None:
        manager = _manager()
        manager.observe(static_cpus=CPUSet.parse("1,8-9,17,24-25"))

        found = _published(
            manager, kubelet=KubeletConfig(cpu_manager_options={"full-pcpus-only": "true"})
        )

        assert found.manager == EffectiveCPUManager(
            "static", {"full-pcpus-only": "true"}, CPUSet.parse("0,16")
        )
