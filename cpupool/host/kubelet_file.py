"""The kubelet's configuration file on this machine."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from cpupool.config import kubelet_config
from cpupool.core.errors import HostFileError

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.config.kubelet_config import KubeletConfig

_LONGEST_FILE_BYTES: Final = 64 * 1024
"""Parsing takes long; the kubelet's configuration is some kilobytes."""
_REMEDY: Final = "name the file that the kubelet's --config names"


class KubeletConfigFile:
    """Reads the file again only when it has changed.

    Args:
        path: the file that the kubelet's `--config` names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, int] | None = None
        self._config: KubeletConfig | None = None

    def read(self) -> KubeletConfig | None:
        """Return the configuration; None where the file is missing or empty.

        Raises:
            HostFileError: the file is there and cannot be read, or is too long.
            ConfigError: it is no configuration of a kubelet.
        """
        try:
            found = self._path.stat()
            at = (found.st_mtime_ns, found.st_size)
            if at != self._read_at:
                text = self._text(found.st_mode)
                name = str(self._path)
                self._config = kubelet_config.parse(name, text) if text.strip() else None
                self._read_at = at
        except FileNotFoundError:
            self._config, self._read_at = None, None
        except OSError as error:
            why = error.strerror or str(error)
            raise HostFileError(str(self._path), why, "make it readable") from error
        return self._config

    def _text(self, mode: int) -> bytes:
        # The open of a pipe waits for a writer.
        if stat.S_ISFIFO(mode):
            raise HostFileError(str(self._path), "this is a pipe", _REMEDY)
        with self._path.open("rb") as file:
            text = file.read(_LONGEST_FILE_BYTES + 1)
        if len(text) > _LONGEST_FILE_BYTES:
            what = f"it has more than {_LONGEST_FILE_BYTES} bytes"
            raise HostFileError(str(self._path), what, _REMEDY)
        return text
