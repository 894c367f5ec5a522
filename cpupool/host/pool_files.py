"""The pool files of a cluster: the entries of a ConfigMap, or the folder where it is mounted."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cpupool.config import poolconfig
from cpupool.config.poolconfig import misnamed
from cpupool.core.errors import HostError, HostFileError, Location
from cpupool.host import files
from cpupool.host.record_file import SET_ASIDE, put_away
from cpupool.telemetry import log as logs
from cpupool.wire import json_text
from cpupool.wire.json_text import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cpupool.core.errors import Problem

log = logs.get(__name__)

FIRST_ANSWER_S: Final = 2.0
"""The time that the first read waits for the API server before it uses the folder."""
_SWAPPED: Final = "..data"
"""The link through which the kubelet shows a ConfigMap's files: one rename changes all of them
(kubernetes pkg/volume/util/atomic_writer.go)."""
LONGEST_FILE_BYTES: Final = 64 * 1024
"""Parsing takes long for thousands of pools; a node's own pools are a few lines."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """The API server's last pool files.

    Attributes:
        texts: the pool files by name.
        folder: the digest of the folder's files at that time; of `texts` once the folder has them.
    """

    texts: Mapping[str, bytes]
    folder: str


class ConfigMapSource(Protocol):
    """The source of the ConfigMap with the pool files."""

    def entries(self) -> Mapping[str, bytes] | None:
        """Return key → content from the API server's last answer, or None before the first."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for the API server's first answer, at most this time."""
        ...


class PoolFiles:
    """The newest available pool files of a cluster; for one thread.

    The kubelet shows an edit of the ConfigMap in the folder a minute or two after the API server
    does. After the API server's first answer this class ignores the folder, which would undo the
    edit. After a restart it takes the API server's last files, as long as the folder still shows
    the files of that time and has not shown the API server's files meanwhile.

    Args:
        folder: where the ConfigMap is mounted.
        config_map: the ConfigMap itself; None to read only the folder.
        last: the file that keeps the API server's last files; None to keep nothing.
        optional: whether a missing folder is the same as an empty folder.
        complain: called with the reason of an Event, and with what is wrong with `last`.

    Attributes:
        folder: as given.
    """

    def __init__(
        self,
        folder: Path,
        config_map: ConfigMapSource | None = None,
        *,
        last: Path | None = None,
        optional: bool = False,
        complain: Callable[[str, str], None] = lambda _reason, _what: None,
    ) -> None:
        self.folder = folder
        self._config_map = config_map
        self._file = last
        self._optional = optional
        self._complain = complain
        self._last: _Shown | None = None
        self._begun = self._lag_logged = False
        self._misnamed: list[Problem] = []

    def read(self) -> Mapping[str, bytes]:
        """Return file name → text; the first call waits a moment for the API server.

        Raises:
            HostFileError: the folder or a file in it cannot be read, or a file is too long.
        """
        if self._config_map is None:
            return self._seen_in_folder()
        if not self._begun:
            self._config_map.wait(FIRST_ANSWER_S)
            self._last = self._load()
            self._begun = True
        entries = self._config_map.entries()
        if entries is None:
            return self._newer(self._seen_in_folder())
        self._log_misnamed(entries)
        texts = {
            name: checked(name, entries[name])
            for name in sorted(entries)
            if poolconfig.is_pool_file(name)
        }
        self._keep(texts)
        return texts

    def _seen_in_folder(self) -> Mapping[str, bytes]:
        texts = self._mounted()
        with suppress(OSError):
            self._log_misnamed(path.name for path in self.folder.iterdir())
        return texts

    def _log_misnamed(self, names: Iterable[str]) -> None:
        """Log once the ignored files that have nearly the name of a pool file."""
        found = [problem for name in sorted(names) for problem in misnamed(name, Location(name))]
        if found != self._misnamed:
            for problem in found:
                log.warning("pool file", problem=problem)
        self._misnamed = found

    def _mounted(self) -> Mapping[str, bytes]:
        if self._optional and not self.folder.exists():
            return {}
        return read_pool_files(self.folder)

    def _newer(self, mounted: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the newer files: the folder's, or the API server's from before a restart."""
        last = self._last
        if last is None or last.texts == mounted or last.folder != _digest(mounted):
            return mounted
        if not self._lag_logged:
            log.warning("pool folder lags behind the API server's last word", kept=self._file)
            self._lag_logged = True
        return last.texts

    def _keep(self, texts: Mapping[str, bytes]) -> None:
        last, caught_up = self._last, _digest(texts)
        if self._file is None or last == _Shown(texts, caught_up):
            return
        try:
            folder = _digest(self._mounted())
        except HostFileError:
            folder = ""
        # If the watch is lost, the folder may show a newer edit.
        if last is not None and last.texts == texts and folder != caught_up:
            return
        self._last = _Shown(texts, folder)
        shown = {name: text.decode(errors="surrogateescape") for name, text in texts.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            kept = json.dumps({"folder": folder, "files": shown}, indent=2)
            files.write_atomically(self._file, kept.encode())
        except (OSError, HostError) as error:
            # The file is needed only after a restart without the API server.
            log.warning("pool files not kept", file=self._file, error=error)

    def _load(self) -> _Shown | None:
        if self._file is None:
            return None
        try:
            data = files.read_first(self._file, json_text.LONGEST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("kept pool files cannot be used", file=self._file, error=error)
            return None
        try:
            kept = Fields.of(json_text.load(data))
            shown = kept.within("files")
            texts = {
                name: shown.get(name, str).encode(errors="surrogateescape")
                for name in shown.members
            }
            return _Shown(texts, kept.get("folder", str))
        except ValueError as error:
            log.warning("kept pool files cannot be used", file=self._file, error=error)
            self._complain(SET_ASIDE, put_away(self._file, "its content is damaged"))
            return None


def read_pool_files(folder: Path) -> dict[str, bytes]:
    """Read every pool file of a folder in which a ConfigMap is mounted.

    All files come from the same edit, also while the kubelet replaces it with the next edit.

    Returns:
        The texts by file name, in the order of the names.

    Raises:
        HostFileError: the folder or a file in it cannot be read, or a file is too long.
    """
    swapped = folder / _SWAPPED
    try:
        while True:
            edit = swapped.resolve()
            try:
                texts = _texts(edit if edit.is_dir() else folder)
            except FileNotFoundError:
                if swapped.resolve() == edit:
                    raise
                continue
            # The kubelet removes an edit as soon as the next edit has replaced it.
            if swapped.resolve() == edit:
                return texts
    except OSError as error:
        raise HostFileError(
            str(error.filename or folder),
            str(error.strerror),
            "name the folder where the pool ConfigMap is mounted with --config",
        ) from error


def _texts(folder: Path) -> dict[str, bytes]:
    names = sorted(path.name for path in folder.iterdir())
    return {name: _text(folder / name) for name in names if poolconfig.is_pool_file(name)}


def _text(path: Path) -> bytes:
    return checked(str(path), files.read_first(path, LONGEST_FILE_BYTES + 1))


def checked(name: str, text: bytes) -> bytes:
    """Return the text of a pool file.

    Raises:
        HostFileError: it is too long.
    """
    if len(text) > LONGEST_FILE_BYTES:
        raise HostFileError(
            name,
            f"a pool file has at most {LONGEST_FILE_BYTES} bytes, this one more",
            "keep in it the pools of one kind of node",
        )
    return text


def _digest(texts: Mapping[str, bytes]) -> str:
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()
