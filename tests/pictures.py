"""A machine whose pools are drawn, and how to read the picture."""

from __future__ import annotations

import re

from cpupool.core.pools import NodePools, Pool
from tests.machines import MACHINES

TELCO = MACHINES["telco_2s_2n_16c32t"]
POOLS = NodePools.of(
    Pool.named("exclusive_caas", "2-5"),
    Pool.named("exclusive_dpdk", "10-13", multi_threaded=True),
    Pool.named("shared_caas", "6-7,22-23"),
    Pool.named("default", "0-1,16-17"),
)


def ids(picture: str, symbol: str) -> list[int]:
    """List the CPUs that carry a symbol."""
    return sorted(int(number) for number in re.findall(rf"(\d+){re.escape(symbol)} ", picture))
