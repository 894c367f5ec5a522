from __future__ import annotations

import json

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.pools import NodePools, Pool
from cpupool.manager.manager import Manager
from cpupool.manager.ports import POD_ITSELF, FoundContainer
from cpupool.manager.report import NodeStatus, describe, from_json, to_json
from cpupool.manager.ways import Way
from tests.builders import container, given, pod
from tests.machines import MACHINES

MACHINE = MACHINES["laptop_4c8t"]
BEFORE = NodePools.of(Pool.named("exclusive_a", "2,4"), Pool.named("shared_a", "0,6"))
AFTER = NodePools.of(Pool.named("exclusive_a", "4"), Pool.named("shared_b", "0,6"))


def edited(*, moves_pinned: bool = True) -> NodeStatus:
    """Describe a node whose pools were edited while a pod had CPUs of both."""
    manager = Manager(Names(), moves_pinned=moves_pinned)
    manager.reconfigure(BEFORE, MACHINE.topology())
    owner = pod("owner", container(exclusive_a=1, shared_a=2))
    manager.set_pods([owner])
    manager.record_devices(given(owner, exclusive_a="2", shared_a="0,1"))
    manager.reconfigure(AFTER, MACHINE.topology())
    found = [FoundContainer("owner-uid", "main-id", "path", "0,2,6")]
    return describe(*manager.state(), found, "", Way.NRI)


def test_what_pods_hold_of_pools_that_shrank_or_went_is_shown() -> None:
    assert edited().draining == {"exclusive_a": 1, "shared_a": 2}


def test_a_container_that_keeps_older_shared_cpus_is_where_it_belongs_and_says_so() -> None:
    (kept,) = edited(moves_pinned=False).containers
    assert kept.wanted == CPUSet.parse("0,2,6")
    assert kept.reason.startswith("stale-shared: ")

    (moved,) = edited().containers
    assert (moved.wanted, moved.reason) == (CPUSet.of(2), "")


def test_what_the_kernel_has_moved_into_a_pod_is_shown_under_the_pods_name() -> None:
    manager = Manager(Names())
    manager.reconfigure(BEFORE, MACHINE.topology())
    manager.set_pods([pod("web")])
    found = [FoundContainer(uid, POD_ITSELF, "path", "0-7") for uid in ("web-uid", "late-uid")]
    known, unknown = describe(*manager.state(), found).containers
    assert known.name == "default/web (moved by the kernel)"
    assert unknown.name == "late-uid (moved by the kernel)"
    assert str(known.wanted) == str(unknown.wanted) == "1,7"


def test_a_status_comes_back_from_json_as_it_was() -> None:
    status = edited(moves_pinned=False)
    assert from_json(json.loads(json.dumps(to_json(status)))) == status
