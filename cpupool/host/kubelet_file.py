"""The kubelet's configuration file on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpupool.config import kubelet_config
from cpupool.core.errors import HostFileError

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.config.kubelet_config import KubeletConfig


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
            HostFileError: the file is there and cannot be read.
            ConfigError: it is no configuration of a kubelet.
        """
        try:
            found = self._path.stat()
            at = (found.st_mtime_ns, found.st_size)
            if at != self._read_at:
                text = self._path.read_bytes()
                name = str(self._path)
                self._config = kubelet_config.parse(name, text) if text.strip() else None
                self._read_at = at
        except FileNotFoundError:
            self._config, self._read_at = None, None
        except OSError as error:
            why = error.strerror or str(error)
            raise HostFileError(str(self._path), why, "make it readable") from error
        return self._config
