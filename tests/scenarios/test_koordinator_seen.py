"""What an admin sees of Koordinator's classes: metrics, `cpupool status` and `cpupool explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.scenarios import test_koordinator
from tests.scenarios.test_koordinator import right, run
from tests.unit import test_app
from tests.waiting import eventually

if TYPE_CHECKING:
    from cpupool.app import Agent
    from tests.scenarios.test_agent_process import World

world = test_koordinator.world


def shown(agent: Agent, *expected: str) -> None:
    """Wait until the agent's metrics have all these lines, without their prefix."""

    def missing() -> list[str]:
        page = test_app.get(agent, "/metrics")[1]
        return [line for line in expected if f"\ncpupool_{line}.0\n" not in page]

    eventually(lambda: not missing(), lambda: str(missing()))


def test_the_metrics_follow_the_sets_and_the_owners(world: World) -> None:
    with world.agent_here() as agent:
        run(world, "ls", "LS", "500m")
        lsr = run(world, "lsr", "LSR", "2", "2-3")
        run(world, "lse", "LSE", "1")
        right(world, ls="0,4-7", lsr="2-3", lse="1")
        shown(
            agent,
            'cpuset_share_pool_cpu_cores{numa_node="0"} 5',
            'cpuset_be_share_pool_cpu_cores{numa_node="0"} 7',
            'cpu_manager_class_owners{qos_class="LSR"} 1',
            'cpu_manager_class_cpus{qos_class="LSR"} 2',
            'cpu_manager_class_cpus{qos_class="LSE"} 1',
        )

        world.node.delete_pod(lsr.uid)
        shown(
            agent,
            'cpuset_share_pool_cpu_cores{numa_node="0"} 7',
            'cpu_manager_class_owners{qos_class="LSR"} 0',
        )
