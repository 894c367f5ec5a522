"""The reader of the agent's status file, for `status` and `explain`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cpupool.commands.shell.exit_codes import UsageError
from cpupool.commands.shell.files import file_content
from cpupool.manager import status_json
from cpupool.wire import json_text
from cpupool.wire.json_text import JSONRefused

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.manager.report import NodeStatus


def read(
    path: Path, writer: str = "cpupool agent", option: str = "--file", others: str = ""
) -> tuple[Any, float]:
    """Read a JSON file that a process keeps true, and its age in seconds.

    Args:
        path: the file.
        writer: the command that writes it.
        option: the option that names another file.
        others: another command whose file the caller takes, too; empty for none.

    Raises:
        UsageError: it is not there, cannot be read, or is no JSON.
    """
    try:
        age_s = time.time() - path.stat().st_mtime
        document = json_text.load(file_content(path), unique=True)
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} is not there: start `{writer}` on this node, or name its status file with"
            f" {option}"
        ) from error
    except PermissionError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); run this as root, or in the container of"
            f" `{writer}`"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the file of `{writer}`") from error
    except JSONRefused as error:
        writers = " or ".join(f"`{each}`" for each in (writer, others) if each)
        remedy = f"name the file of {writers} with {option}"
        raise UsageError(f"{path} is no status file: {error}; {remedy}") from error
    return document, age_s


def parse(path: Path, document: object) -> NodeStatus:
    """Take a document for a status.

    Raises:
        UsageError: it is none, or one of another version.
    """
    try:
        return status_json.from_json(document)
    except JSONRefused as error:
        raise UsageError(
            f"{path} is no status file of this version of cpupool: {error}; restart the agent, or"
            " name its file with --file"
        ) from error


def silence(age_s: float) -> str:
    """Describe in a line that no agent updates the file."""
    return f"This is {age_s:.0f} s old: the agent does not run, or cannot write its file.\n"
