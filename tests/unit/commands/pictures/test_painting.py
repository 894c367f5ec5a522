from __future__ import annotations

from dataclasses import replace

from cpupool.commands.pictures.painting import Painting, paint, paint_pools
from cpupool.core.cpu_manager import CPUManager, SystemPods
from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from tests.pictures import POOLS, TELCO


class TestPaintPools:
    def test_siblings_look_like_their_owner_where_they_are_granted_and_paler_where_idle(
        self,
    ) -> None:
        marks = paint_pools(POOLS, TELCO.topology()).marks

        assert marks[26].style == marks[10].style
        assert marks[18].style != marks[2].style

    def test_without_a_default_pool_the_rest_is_shown_as_one(self) -> None:
        topology = TELCO.topology()

        painting = paint_pools(NodePools.of(Pool.named("shared_a", "0-7")), topology)

        assert [(row.name, str(row.cpus)) for row in painting.legend] == [
            ("shared_a", "0-7"),
            ("in no pool", "8-31"),
        ]

    def test_listed_siblings_and_reserved_cpus_look_like_the_rest_of_their_pool(self) -> None:
        policy = PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES, reserved=CPUSet.of(2, 18))
        pool = replace(Pool.named("exclusive_a", "2-3,18-19"), policy=policy)

        painting = paint_pools(NodePools.of(pool), TELCO.topology())

        assert {painting.marks[cpu] for cpu in (2, 3, 18, 19)} == {painting.marks[2]}
        assert (painting.legend[0].name, painting.legend[0].note) == (
            "exclusive_a",
            "one owner each, 2,18 reserved",
        )

    def test_cpus_of_two_pools_have_a_mark_of_their_own(self) -> None:
        pools = NodePools.of(Pool.named("shared_a", "0-3"), Pool.named("default", "3-5"))

        painting = paint_pools(pools, TELCO.topology())

        assert [painting.marks[cpu].symbol for cpu in range(6)] == ["B", "B", "B", "+", "A", "A"]
        assert painting.legend[-1].name == "default + shared_a"
        assert painting.legend[-1].cpus == CPUSet.of(3)

    def test_the_cpus_of_system_pods_are_none_of_the_default_pool(self) -> None:
        system = SystemPods(("kube-system", "monitoring"), CPUSet.of(2, 3))
        manager = CPUManager("static", 1, system_pods=system)
        for pools in ([], [Pool.named("default", "0-31")]):
            painting = paint_pools(NodePools.of(*pools, cpu_manager=manager), TELCO.topology())

            default, row = painting.legend
            assert (str(default.cpus), str(row.cpus)) == ("0-1,4-31", "2-3")
            assert (row.name, row.note) == ("system pods", "only pods of kube-system, monitoring")


class TestPaint:
    def test_groups_of_the_same_cpus_share_a_mark(self) -> None:
        cpus = CPUSet.parse("4-5")
        painting = paint([*((f"web-{number}", cpus) for number in range(5)), ("db", CPUSet.of(6))])

        assert [(row.mark.symbol, row.name) for row in painting.legend] == [
            ("A", "web-0, web-1, web-2 and 2 more"),
            ("B", "db"),
        ]
        assert painting.marks[4] == painting.marks[5] != painting.marks[6]

    def test_cpus_that_a_group_leaves_have_its_colour_and_another_symbol(self) -> None:
        groups = [("web", CPUSet.parse("1-4")), ("db", CPUSet.of(5)), ("log", CPUSet.of(1, 2))]
        painting = paint(groups, {"web": CPUSet.parse("3-4")})

        assert [
            (row.mark.symbol, row.name, str(row.cpus), row.note) for row in painting.legend
        ] == [
            ("A", "web, log", "1-2", ""),
            ("-", "web", "3-4", "leaving"),
            ("B", "db", "5", ""),
        ]
        assert painting.marks[3].style == painting.marks[1].style

    def test_a_group_without_cpus_is_left_out(self) -> None:
        assert paint([("gone", CPUSet())]) == Painting({}, [])

    def test_more_groups_than_letters_begin_again(self) -> None:
        painting = paint((str(cpu), CPUSet.of(cpu)) for cpu in range(60))

        assert painting.marks[0].symbol == painting.marks[52].symbol == "A"

    def test_neighbouring_groups_differ_in_lightness(self) -> None:
        painting = paint((str(cpu), CPUSet.of(cpu)) for cpu in range(8))

        grounds = [painting.marks[cpu].style.split()[-1] for cpu in range(8)]
        light = [sum(bytes.fromhex(ground[1:])) > 380 for ground in grounds]

        assert light == [False, True] * 4
