"""The limit for the list of a resource's devices: the kubelet takes a message of 4 MiB."""

from __future__ import annotations

from typing import Final

MAX_DEVICE_LIST_BYTES: Final = 4 * 1024 * 1024
"""The kubelet's gRPC client refuses a larger message (grpc-go's default)."""
_DEVICE_BYTES: Final = 13
"""One healthy device in ListAndWatchResponse without its id: tags, lengths and `Healthy`."""


def device_list_bytes(count: int) -> int:
    """Return the bytes of the ListAndWatch message of a pool with the device ids 0 to count-1."""
    # Every id has a first digit, ids from 10 have a second digit, ids from 100 a third, ...
    further_digits: int = sum(count - 10**power for power in range(1, len(str(count))))
    return count * (_DEVICE_BYTES + 1) + further_digits
