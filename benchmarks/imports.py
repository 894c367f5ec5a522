"""The sources of the agent's resident memory: the part that each package adds when it is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

_STEPS: Final = (
    ("", "Python itself"),
    ("ssl", "ssl: TLS to the API server; asyncio loads it, too"),
    ("asyncio", "asyncio: the loops of gRPC and of the probes"),
    ("google.protobuf.internal.builder", "protobuf: the messages of kubelet and runtime"),
    ("grpclib.client, grpclib.server", "grpclib, h2: gRPC"),
    ("urllib3", "urllib3: the API server"),
    ("prometheus_client", "prometheus_client: /metrics; it loads its own HTTP server"),
    ("yaml", "yaml: pool files"),
    ("cpupool.cli", "cpupool.cli: the command line, with argparse"),
    ("cpupool.commands.agent", "cpupool: the agent itself"),
)
"""The imported packages, one after the other, each with its purpose."""
_RESIDENT: Final = (
    "import os;print(int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE'))"
)


def imports() -> Iterator[Row]:
    """The resident memory that each package adds to the agent."""
    before_bytes, loaded = 0, ""
    for module, purpose in _STEPS:
        loaded += f"import {module}\n" if module else ""
        now_bytes = _resident_bytes(loaded)
        yield (f"loaded: {purpose}", f"{(now_bytes - before_bytes) / 2**20:.1f} MiB", "-")
        before_bytes = now_bytes
    yield ("loaded, in all", f"{before_bytes / 2**20:.1f} MiB", "-")


def _resident_bytes(code: str) -> int:
    command = (sys.executable, "-c", code + _RESIDENT)
    # The first run may write the bytecode, which takes memory.
    outputs = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2)]
    return int(outputs[-1])
