"""Logging: the standard library's, one line per event, to stderr.

Levels: ERROR needs a person, WARNING may soon, INFO is what changed on the node, DEBUG is why.
"""

from __future__ import annotations

import logging
import sys


def set_up(level: int) -> None:
    """Send cpupool's log lines of this level and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("cpupool")
    logger.handlers = [handler]
    logger.setLevel(level)
