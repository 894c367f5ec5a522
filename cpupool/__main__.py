"""`python -m cpupool` is the `cpupool` command, and `run` is the entry point of its script."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    interrupted = signal.getsignal(signal.SIGINT)
    # A signal that the parent has switched off stays off.
    if interrupted is signal.default_int_handler:
        # Until the command line can say a word about it, Ctrl-C ends an import without a traceback.
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(128 + signal.SIGINT))
    from cpupool import cli  # noqa: PLC0415 - what takes time is imported under that handler

    signal.signal(signal.SIGINT, interrupted)
    cli.run()


if __name__ == "__main__":
    run()
