"""An agent that starts while a real containerd stops a container that ignores SIGTERM."""

from __future__ import annotations

import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.containerd.pods import Kind
from tests.containerd.test_first_instruction import disturb, held, in_place
from tests.vm.machine import TIMEOUT_S
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.containerd.node import Node
    from tests.containerd.pods import Hosted

log = logging.getLogger(__name__)

# The first may have to get containerd from a slow mirror.
pytestmark = pytest.mark.timeout(TIMEOUT_S)

GRACE_S = 30
SHORT_GRACE_S = 8


@contextmanager
def stopping(node: Node, stubborn: Hosted, grace_s: int) -> Iterator[Future[None]]:
    """Stop a container that ignores SIGTERM; give the runtime's answer."""
    node.ask_to_end(stubborn, grace_s)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(node.cri.stop, stubborn.container, grace_s)
        eventually(lambda: "StopContainer for" in node.host.log, "the runtime stops it")
        yield stopped


def test_a_pod_that_ends_slowly_keeps_no_other_from_starting(node: Node) -> None:
    node.configure(node.layouts[-1])
    with ThreadPoolExecutor(1) as pool:
        with node.agent("nri") as agent:
            stubborn = node.run(Kind.DEFAULT, stays=True)
            before = node.run(Kind.SHARED)
            node.await_right([stubborn, before])
            usual_s = started_in_s(node)
            agent.send_signal(signal.SIGKILL)
            agent.wait()
        connections = node.connections()
        with (
            stopping(node, stubborn, GRACE_S) as stopped,
            node.agent("nri", connects=False),
        ):
            waits = f"nri: waits for default/{stubborn.pod.name} until "
            eventually(lambda: waits in node.log(), node.log)
            begun_s = time.monotonic()
            starting = pool.submit(node.run, Kind.DEFAULT)
            eventually(lambda: starting.done() or stopped.done(), node.log)
            assert not stopped.done(), "the start has waited for the other pod's end"
            meanwhile_s = time.monotonic() - begun_s
            log.info("a pod starts in %.2f s; before in %.2f s", meanwhile_s, usual_s)
            during = starting.result()
            # As without NRI: the runtime writes those whose list it has, the agent the others.
            put_back(node, before, during)
            assert (held(node, before), held(node, during)) == (str(node.expected(before)), "")
            assert node.connections() == connections
            # What is stopped by force returns before its grace period is over.
            node.remove(stubborn)
            stopped.result()
            eventually(lambda: node.connections() > connections, node.log)
            # Each container keeps its writer.
            after = node.run(Kind.DEFAULT)
            put_back(node, before, during, after)
            assert held(node, during) == ""
            assert held(node, after) == str(node.expected(after))


def test_the_runtime_starts_no_pod_once_a_plugin_waits_for_the_end_of_another(node: Node) -> None:
    """The fault of containerd for which the agent waits."""
    connections = node.connections()
    with ThreadPoolExecutor(1) as pool:
        stubborn = node.run(Kind.DEFAULT, stays=True)
        with (
            stopping(node, stubborn, SHORT_GRACE_S) as stopped,
            node.agent("nri", "--nri-wait", "0", connects=False),
        ):
            begun_s = time.monotonic()
            starting = pool.submit(node.run, Kind.DEFAULT)
            eventually(lambda: starting.done() or stopped.done(), node.log)
            assert stopped.done()
            starting.result()
            log.info("a pod starts in %.2f s", time.monotonic() - begun_s)
            eventually(lambda: node.connections() > connections, node.log)


def test_a_runtime_that_has_restarted_is_met_at_once_and_then_stops_the_container_again(
    node: Node,
) -> None:
    with node.agent("nri", "--nri-wait", "3600"), ThreadPoolExecutor(1) as pool:
        stubborn = node.run(Kind.DEFAULT, stays=True)
        node.await_right([stubborn])
        node.ask_to_end(stubborn, GRACE_S)
        connections = node.connections()
        node.host.restart(signal.SIGKILL)
        eventually(lambda: node.connections() > connections, node.log)
        with stopping(node, stubborn, GRACE_S) as stopped:
            starting = pool.submit(node.run, Kind.DEFAULT)
            eventually(lambda: starting.done() or stopped.done(), node.log)
            assert not stopped.done()
            during = starting.result()
            node.await_right([during])
            assert node.astray([during]) == [], "NRI has placed it"
            node.remove(stubborn)


def put_back(node: Node, *pods: Hosted) -> None:
    """Move containers to other CPUs, and wait until the agent has put them back."""
    node.await_right(pods)
    disturb(node, list(pods))
    eventually(lambda: all(in_place(node, one) for one in pods), node.log)


def started_in_s(node: Node) -> float:
    """Start a pod, and give how long that takes."""
    begun_s = time.monotonic()
    node.run(Kind.DEFAULT)
    return time.monotonic() - begun_s
