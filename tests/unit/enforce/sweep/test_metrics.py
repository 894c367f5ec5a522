from __future__ import annotations

from cpupool.core.cpuset import CPUSet
from tests import builders
from tests.setters import ids, owner_on_2


def test_states_are_counted_as_they_are_now() -> None:
    node = owner_on_2()

    def states() -> dict[str, float]:
        return {
            state: node.measured(f'cpupool_containers{{state="{state}"}}')
            for state in ("right", "repaired", "unknown", "failed")
        }

    assert states() == {"right": 0, "repaired": 2, "unknown": 0, "failed": 0}
    node.setter.sweep()
    assert states() == {"right": 2, "repaired": 0, "unknown": 0, "failed": 0}
    node.run("stranger", listed=False)
    node.run("stuck")
    node.kernel.refusing.add(node.path("stuck"))
    node.setter.sweep()
    node.setter.sweep()
    assert states() == {"right": 2, "repaired": 0, "unknown": 1, "failed": 1}
    assert node.measured('cpupool_containers_confined{cause="unknown_pod"}') == 1
    node.kernel.refusing.clear()
    node.kernel.write(node.path("stuck"), CPUSet.of(1))
    node.setter.sweep()
    assert states() == {"right": 3, "repaired": 0, "unknown": 1, "failed": 0}


def test_the_time_from_the_first_sight_of_a_container_to_its_own_cpus_is_measured_once() -> None:
    node = owner_on_2()
    assert node.measured("cpupool_container_placement_seconds_count") == 0, "they were there before"

    node.run("late", builders.container(exclusive_a=1))
    node.setter.sweep()
    assert node.cpus("late") == "1"
    node.now_s += 7
    node.source.saved["late"] = {"exclusive_a": ids("4")}
    node.setter.sweep()
    node.now_s += 7
    node.kernel.write(node.path("late"), CPUSet.of(5))
    node.setter.sweep()

    assert node.measured("cpupool_container_placement_seconds_count") == 1
    assert node.measured("cpupool_container_placement_seconds_sum") == 7
