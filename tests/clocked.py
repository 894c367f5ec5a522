"""A plugin of ours whose loop has another clock: `python -m tests.clocked resource-plugin cpu`.

The variable CLOCK names a file with the seconds. In the folder of the plugins' file it wakes them
whenever it is replaced.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from cpupool import cli
from cpupool.plugins.pool_loop import PoolLoop

CLOCK = "CLOCK"


def now_s() -> float:
    """Return what the file says."""
    return float(Path(os.environ[CLOCK]).read_text())


if __name__ == "__main__":
    with patch("cpupool.commands.resource_plugin.PoolLoop", partial(PoolLoop, now_s=now_s)):
        sys.exit(cli.main(sys.argv[1:]))
