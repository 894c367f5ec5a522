"""Plugins that serve the pools of a telco machine, and calls of them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cpupool.api.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
)
from cpupool.api.deviceplugin_pb2_grpc import DevicePluginStub
from cpupool.core.cpuset import CPUSet
from cpupool.core.pool_policy import CPUBindPolicy, PoolPolicy
from cpupool.core.pools import NodePools, Pool
from cpupool.kubelet.device_plugin import DevicePluginServer
from cpupool.manager.manager import Manager
from cpupool.rpc.serving import ServingLoop
from tests import builders
from tests.kubelets import dial
from tests.machines import MACHINES

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import grpc
    import pytest

    from cpupool.core.mounts import Mount

# Two sockets, each a NUMA node of eight cores: CPUs 0-7 and 8-15, siblings 16-23 and 24-31.
TELCO = MACHINES["telco_2s_2n_16c32t"]
MACHINE = TELCO.topology()
SINGLE = Pool.named("exclusive_a", "2-3,8")
MULTI = Pool.named("exclusive_ht", "4-5,10", multi_threaded=True)
SHARED = Pool.named("shared_s", "6,22,11-12")
WHOLE = replace(
    Pool.named("exclusive_whole", "7,13-15,23,29-31"),
    policy=PoolPolicy(CPUBindPolicy.FULL_PHYSICAL_CORES, reserved=CPUSet.of(15, 31)),
)
POOLS = NodePools.of(SINGLE, MULTI, SHARED, WHOLE)


class Served(NamedTuple):
    """A pool's plugin on its socket, and somebody who calls it."""

    manager: Manager
    server: DevicePluginServer
    socket: Path
    stub: DevicePluginStub
    channel: grpc.Channel


@contextmanager
def serving_pools(
    folder: Path, pool: Pool, mounts: Callable[[], list[Mount]] = list
) -> Iterator[Served]:
    manager = Manager()
    manager.reconfigure(POOLS, MACHINE)
    with ServingLoop() as loop:
        server = DevicePluginServer(manager, builders.resource(pool.name), folder, loop, mounts)
        server.start()
        socket = folder / server.endpoint
        try:
            with dial(socket) as channel:
                yield Served(manager, server, socket, DevicePluginStub(channel), channel)
        finally:
            server.stop()


def own_server(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Give our records: grpc hands events of a server that is gone to the loop of the next one."""
    return [record for record in caplog.records if record.name.startswith("cpupool")]


def allocate(*ids: str) -> AllocateRequest:
    return AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])


def prefer(available: str, size: int, must: str = "") -> PreferredAllocationRequest:
    return PreferredAllocationRequest(
        container_requests=[
            ContainerPreferredAllocationRequest(
                available_deviceIDs=available.split(","),
                must_include_deviceIDs=must.split(",") if must else [],
                allocation_size=size,
            )
        ]
    )


def workers(server: DevicePluginServer) -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith(server.endpoint)
    ]
