"""What the agent hears from a cluster, running."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.kube.cluster import Cluster


@contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    """Run every loop of a cluster, and see that each ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,)) for loop in cluster.loops().values()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        cluster.wake()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
