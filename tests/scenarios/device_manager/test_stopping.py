from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.scenarios.device_manager.node import Node


def test_stopping_leaves_no_socket_and_no_thread(node: Node) -> None:
    before = set(threading.enumerate())
    node.kubelet.start()
    with node.running():
        node.wait_for_lists(1)
    assert node.sockets() == {"kubelet.sock"}
    node.kubelet.stop()
    left = set(threading.enumerate()) - before

    def ended() -> bool:
        # grpc ends its polling thread when the last server is freed, which stands in a cycle.
        gc.collect()
        return not any(thread.is_alive() for thread in left)

    eventually(ended, lambda: f"the end of {left}")


def test_a_stop_does_not_ask_a_slow_kubelet_for_the_other_pools(node: Node) -> None:
    node.kubelet.ready.clear()
    node.kubelet.start()
    with node.running() as stop:
        eventually(lambda: node.kubelet.calls == 1, "a registration")
        stop.set()
        node.kubelet.ready.set()
    assert node.kubelet.calls == 1
    assert node.sockets() == {"kubelet.sock"}
