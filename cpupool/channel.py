"""Calls to the kubelet and the container runtime: gRPC over unix sockets."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import grpc

from cpupool.core.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A node's podresources list names every milli-CPU of every container by its id."""

_REMEDIES: Final = {
    grpc.StatusCode.UNAVAILABLE: "check that {peer} runs and that its folder is mounted",
    grpc.StatusCode.DEADLINE_EXCEEDED: "check whether {peer} hangs",
    grpc.StatusCode.UNIMPLEMENTED: "{peer} is too old or has this service switched off",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "ask less often",
}


def opened(socket: Path, max_message_bytes: int) -> grpc.Channel:
    """Return a channel to a unix socket; it connects with its first call.

    Args:
        socket: the peer's socket.
        max_message_bytes: the largest message that the channel accepts.
    """
    options = (
        # Without it the socket's path becomes the authority, which Go's HTTP/2 server refuses.
        ("grpc.default_authority", "localhost"),
        # A shared pool remembers a refused connection and makes a new channel wait.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", max_message_bytes),
    )
    return grpc.insecure_channel(f"unix:{socket}", options=options)


@contextmanager
def dialled(socket: Path, purpose: str, peer: str = "the kubelet") -> Iterator[grpc.Channel]:
    """Open a channel for one call.

    A new channel for each call reaches a restarted peer at once; a permanent channel would wait for
    its own back-off.

    Args:
        socket: the peer's socket.
        purpose: what the call is for, as in `registering nokia.k8s.io/shared`.
        peer: the peer's name, for messages.

    Raises:
        RemoteProtocolError: the call made inside failed.
    """
    try:
        with opened(socket, MAX_MESSAGE_BYTES) as channel:
            yield channel
    except grpc.RpcError as error:
        raise RemoteProtocolError(
            f"{purpose} on {socket} failed ({error.code().name}: {error.details()});"
            f" {_REMEDIES.get(error.code(), 'look at the log of {peer}').format(peer=peer)}"
        ) from error
