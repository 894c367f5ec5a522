"""The kubelet's configuration on this machine: its file, its drop-ins and its flags together.

Source: kubernetes cmd/kubelet/app/server.go; the order of the drop-ins is that of Go's
filepath.WalkDir, which follows no link to a folder.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpupool.config import kubelet_config
from cpupool.config.kubelet_sources import command_line, drop_in
from cpupool.core.errors import HostFileError
from cpupool.host.processes import command_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cpupool.config.kubelet_settings import KubeletConfig
    from cpupool.config.kubelet_sources import CommandLine
    from cpupool.host.root import HostRoot

_LONGEST_FILE_BYTES: Final = 64 * 1024
"""Parsing takes long; the kubelet's configuration is some kilobytes."""
_MOST_ENTRIES: Final = 256
_KUBELET: Final = "kubelet"
_ALL_IN_ONE: Final = "hyperkube"
"""A program that is the kubelet if its first word says so."""
_DROP_IN: Final = ".conf"
_REMEDY: Final = "name the file that the kubelet's --config names"
_FOLDER_REMEDY: Final = (
    "the kubelet does not start without the folder of its --config-dir: mend it, or name another"
    " with --kubelet-config-dir"
)
_NO_FLAGS: Final = command_line(("kubelet",))
_Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """The places of the kubelet's configuration.

    Attributes:
        path: its file; None for the one that its command line names, or its usual place.
        folder: the folder of its drop-ins; empty for the one that its command line names.
    """

    path: Path | None = None
    folder: str = ""

    @classmethod
    def named(cls, path: str, folder: str) -> KubeletFiles:
        """Return the places by the names that a user gives; an empty one stands for none."""
        return cls(Path(path) if path else None, folder)

    @classmethod
    def of(cls, host: HostRoot, path: Path, folder: str) -> KubeletFiles:
        """Return the places; the usual one of a host gives way to the kubelet's command line."""
        return cls(None if path == host.kubelet_config else path, folder)


class KubeletConfigFile:
    """Reads the configuration again only when it has changed.

    Args:
        files: where the configuration is, or its file alone.
        host: where the kubelet runs; None to look for no process.
    """

    def __init__(self, files: KubeletFiles | Path, *, host: HostRoot | None = None) -> None:
        self._files = files if isinstance(files, KubeletFiles) else KubeletFiles(files)
        self._host = host
        self._read_of: tuple[CommandLine | None, tuple[_Stamp, ...]] | None = None
        self._config: KubeletConfig | None = None

    def read(self) -> KubeletConfig | None:
        """Return the configuration; None where the file is missing or empty.

        Raises:
            HostFileError: a file or the folder is there and cannot be read, or is too long.
            ConfigError: one of them is no configuration of a kubelet.
        """
        line = kubelet_process(self._host) if self._host else None
        path, drop_ins = self._main(line), self._drop_ins(line)
        main = _stamp(path) if path else None
        if path and main is None:
            self._config, self._read_of = None, None
            return None
        stamps = tuple(filter(None, (main, *map(_stamp, drop_ins))))
        if (line, stamps) != self._read_of:
            self._config = _read(path, drop_ins, line)
            self._read_of = line, stamps
        return self._config

    def _main(self, line: CommandLine | None) -> Path | None:
        """Return the file; None for a kubelet that runs without one."""
        if self._files.path or self._host is None:
            return self._files.path
        if line is None:
            return self._host.kubelet_config
        if not line.config:
            return None
        named = _on_host(self._host, line.config)
        # An agent's container may have the file mounted at its usual place.
        return Path(named) if os.path.lexists(named) else self._host.kubelet_config

    def _drop_ins(self, line: CommandLine | None) -> list[Path]:
        if self._files.folder:
            return list(_drop_ins(self._files.folder))
        if self._host and line and line.config_dir:
            return list(_drop_ins(_on_host(self._host, line.config_dir)))
        return []


def kubelet_process(host: HostRoot) -> CommandLine | None:
    """Return the command line of the kubelet; None unless exactly one kubelet is visible."""
    found = set()
    for program, *rest in command_lines(host.proc, _KUBELET, _ALL_IN_ONE):
        if not program.endswith(_ALL_IN_ONE):
            found.add((program, *rest))
        elif rest[:1] == [_KUBELET]:
            found.add(tuple(rest))
    return command_line(found.pop()) if len(found) == 1 else None


def is_kubelets(path: Path, host: HostRoot) -> bool:
    """Return whether a file is the one that the running kubelet's command line names."""
    line = kubelet_process(host)
    if line is None or not line.config:
        return False
    try:
        return path.samefile(_on_host(host, line.config))
    except OSError:
        return False


def _on_host(host: HostRoot, named: str) -> str:
    """Return where a path of the kubelet is here; a slash at its end stays."""
    return f"{host.base}/{named.lstrip('/')}"


def _read(
    path: Path | None, drop_ins: list[Path], line: CommandLine | None
) -> KubeletConfig | None:
    file = _NO_FLAGS.settings
    if path:
        text = _text(path)
        if not text.strip():
            return None
        file = kubelet_config.table(str(path), text)
    later = [drop_in(str(each), _text(each)) for each in drop_ins]
    flags = (line or _NO_FLAGS).settings
    return kubelet_config.effective(file, later, flags, complete=line is not None)


def _drop_ins(folder: str) -> Iterator[Path]:
    """Yield the drop-ins of a folder and of those below it, in their order.

    Raises:
        HostFileError: it is missing, cannot be read, or is too large.
    """
    top, seen = Path(folder), 0
    ahead = [top]
    while ahead:
        path = ahead.pop()
        try:
            # A link that leads nowhere is a mistake, though the kubelet only passes over it.
            mode = top.stat().st_mode if path == top else path.lstat().st_mode
            if path == top and not folder.endswith("/"):
                mode = path.lstat().st_mode
            is_folder = stat.S_ISDIR(mode)
            inside = sorted(path.iterdir(), key=os.fsencode) if is_folder else []
        except OSError as error:
            raise HostFileError(str(path), _why(error), _FOLDER_REMEDY) from error
        seen += len(inside)
        if seen > _MOST_ENTRIES:
            what = f"it has more than {_MOST_ENTRIES} files and folders"
            raise HostFileError(folder, what, _FOLDER_REMEDY)
        ahead += reversed(inside)
        if not is_folder and path.name.endswith(_DROP_IN):
            yield path


def _stamp(path: Path) -> _Stamp | None:
    """Return a value that changes when a file changes; None where there is no file.

    Raises:
        HostFileError: it cannot be seen.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    return str(path), found.st_mtime_ns, found.st_size


def _text(path: Path) -> bytes:
    try:
        # The open of a pipe waits for a writer.
        if stat.S_ISFIFO(path.stat().st_mode):
            raise HostFileError(str(path), "this is a pipe", _REMEDY)
        with path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(text) > _LONGEST_FILE_BYTES:
        what = f"it has more than {_LONGEST_FILE_BYTES} bytes"
        raise HostFileError(str(path), what, _REMEDY)
    return text


def _unreadable(path: Path, error: OSError) -> HostFileError:
    return HostFileError(str(path), _why(error), "make it readable")


def _why(error: OSError) -> str:
    return error.strerror or str(error)
