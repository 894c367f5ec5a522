"""`python -m cpupool` is the `cpupool` command, and `run` is the entry point of its script."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports what Ctrl-C may interrupt
import os


def run() -> None:
    """Run the command line of this process and exit."""
    interrupted = _signal.getsignal(_signal.SIGINT)
    # A signal that the parent has switched off stays off.
    if interrupted is _signal.default_int_handler:
        # Until the command line can say a word about it, Ctrl-C ends an import without a traceback.
        _signal.signal(_signal.SIGINT, lambda _number, _frame: os._exit(128 + _signal.SIGINT))
    from cpupool import cli  # noqa: PLC0415 - what takes time is imported under that handler

    _signal.signal(_signal.SIGINT, interrupted)
    cli.run()


if __name__ == "__main__":
    run()
