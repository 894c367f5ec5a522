"""No order of events lets two pods own an exclusive CPU, or runs anybody else on one."""

from __future__ import annotations

from itertools import combinations

from hypothesis.stateful import invariant

from cpupool.core import devices
from cpupool.core.assignments import Placement
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import PoolKind
from cpupool.manager import resolve, sightings
from cpupool.manager.choosing import Choices
from tests import builders
from tests.properties.owners import MACHINE, Node
from tests.searching import examples


class Ownership(Node):
    """What holds after every event."""

    @invariant()
    def no_cpu_has_two_owners_in_the_kubelets_books(self) -> None:
        topology = self.topology()
        held = [
            life.pool.granted(devices.exclusive_cpus(life.ids), topology)
            for life in self.kubelet.lives
            if life.pool.kind is PoolKind.EXCLUSIVE
        ]
        assert all(one.isdisjoint(other) for one, other in combinations(held, 2))

    @invariant()
    def what_is_kept_of_earlier_decisions_is_what_new_ones_would_be(self) -> None:
        facts, resolution = self.manager.snapshot()
        decided = Choices.of(resolution.view)
        anew = resolve.resolve(facts, sightings.present(facts), decided)
        assert resolution.containers == anew.containers

    @invariant()
    def nobody_loses_a_cpu_that_it_owns(self) -> None:
        owned = builders.owned(self.manager)
        holders = [cpus for by_pool in owned.values() for cpus in by_pool.values()]
        assert all(one.isdisjoint(other) for one, other in combinations(holders, 2))
        for life in self.kubelet.lives:
            uid, pool = life.pod.uid, life.pool.name
            had = self.owned.get(uid, {}).get(pool, CPUSet()) & life.announced
            assert had <= owned.get(uid, {}).get(pool, CPUSet()), (uid, pool)
        self.owned = owned

    @invariant()
    def who_was_given_a_cpu_owns_it(self) -> None:
        """Whatever annotations claim."""
        owned = builders.owned(self.manager)
        for life in self.kubelet.lives:
            if life.seen and life.pool.kind is PoolKind.EXCLUSIVE:
                mine = CPUSet.union(owned.get(life.pod.uid, {}).values())
                assert devices.exclusive_cpus(life.ids) <= mine, life

    @invariant()
    def a_core_has_one_owner_unless_its_pool_lists_siblings(self) -> None:
        """Who comes second to a core had its device of a pool with a `cpuBindPolicy`."""
        topology = MACHINE.topology()
        holders = [one for one in self.kubelet.lives if one.pool.kind is PoolKind.EXCLUSIVE]
        for first, second in combinations(holders, 2):
            core = topology.with_siblings(first.announced)
            if not core.isdisjoint(second.announced):
                assert first.pool.name == second.pool.name
                assert second.pool.policy.bind is not None, (first, second)

    @invariant()
    def what_a_pod_holds_stays_listed_and_healthy(self) -> None:
        """Or the kubelet would not admit the pod again after a restart."""
        online = self.topology().online
        for life in self.kubelet.lives:
            listed = {one.id: one.healthy for one in self.manager.devices(life.pool.name).offer}
            assert set(life.ids) <= listed.keys()
            for one in life.ids:
                if life.pool.kind is PoolKind.EXCLUSIVE and int(one) in online:
                    assert listed[one], (life, one)

    @invariant()
    def nobody_else_is_placed_on_an_owned_cpu(self) -> None:
        facts, resolution = self.manager.snapshot()
        for uid, by_pool in builders.owned(self.manager).items():
            mine = CPUSet.union(by_pool.values())
            assert resolution.unknown.cpus.isdisjoint(mine)
            assert resolution.view.default.cpus.isdisjoint(mine)
            for placed in resolution.containers.values():
                if placed.pod.uid != uid:
                    assert placed.assignment.cpus.isdisjoint(mine)
                assert placed.assignment.cpus <= facts.topology.online

    @invariant()
    def what_a_shared_pool_shows_is_where_its_containers_are(self) -> None:
        """A container that starts waits until its cpuset is what its pools show."""
        facts, resolution = self.manager.snapshot()
        for placed in resolution.containers.values():
            if placed.assignment.placement is Placement.POOLS and not placed.assignment.stale:
                shown = CPUSet.union(
                    resolution.shared.get(pool, CPUSet()) for pool in placed.container.requests
                )
                assert placed.assignment.shared == shown & facts.topology.online


TestOwnership = Ownership.TestCase
TestOwnership.settings = examples(60, stateful_step_count=40)
