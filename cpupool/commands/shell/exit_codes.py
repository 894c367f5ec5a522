"""The exit codes of the command line, and the error that ends it with `BAD_INPUT`."""

from __future__ import annotations

from typing import Final

from cpupool.core.errors import CPUPoolError

FAILED: Final = 1
"""Exit code where the answer is bad, for example an error in a pool file."""
BAD_INPUT: Final = 2
"""Exit code where there is no answer: the command line, or a file it names, cannot be used."""
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""


class UsageError(CPUPoolError):
    """The command line, or a file that it names, cannot be used: exit code 2."""
