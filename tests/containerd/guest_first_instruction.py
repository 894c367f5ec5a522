"""What `test_first_instruction.py` shows, in a guest; `tests/vm/test_systemd.py` runs this there.

There are cgroup version 2, cores of two threads and containerd 1.7. Emulated CPUs take seconds for
each container, so that they are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cpupool.host.cgroupfs import CgroupVersion, hierarchy
from tests.containerd.conftest import containerd
from tests.containerd.node import at_once
from tests.containerd.pods import Kind
from tests.containerd.test_first_instruction import RESIZES, disturb, end, in_place, resize
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containerd.node import Node
    from tests.containerd.runtime import ContainerdHost

SUITE = "trixie"
KINDS = (Kind.EXCLUSIVE, Kind.EXCLUSIVE, Kind.SHARED, Kind.DEFAULT)


@pytest.fixture(scope="module")
def host() -> Iterator[ContainerdHost]:
    try:
        with containerd(SUITE) as host:
            yield host
    except pytest.skip.Exception as reason:
        # Who boots a guest for this has seen that it can be done.
        pytest.fail(str(reason))


def test_no_container_runs_one_instruction_on_a_wrong_cpu(node: Node) -> None:
    assert hierarchy(node.host.root.cgroup)[1] is CgroupVersion.V2
    with node.agent("nri"):
        pods = at_once(node.run, KINDS)
        assert len({str(node.expected(one)) for one in pods}) == len(KINDS)
        node.await_right(pods)
        assert node.astray(pods) == []
        at_once(node.restart, pods[:2])
        for asked in RESIZES[::2]:
            resize(node, asked, pods)
        end(node, pods)
        assert node.astray(pods) == []


def test_containers_are_brought_where_they_belong_and_kept_there(node: Node) -> None:
    with node.agent("cgroup"):
        pods = at_once(node.run, KINDS[1:3])
        node.await_right(pods)
        disturb(node, pods)
        eventually(lambda: all(in_place(node, one) for one in pods), node.log)
        end(node, pods)
        assert [node.record(one).sightings[-1].cpus for one in pods] == [
            node.expected(one) for one in pods
        ]
