"""A mounted ConfigMap or Secret, edited in the kubelet's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Mount:
    """The folder of a ConfigMap or Secret; one rename changes all its files.

    Source: kubernetes pkg/volume/util/atomic_writer.go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._edits = 0

    def show(self, **files: str) -> None:
        """Show these texts as `poolconfig-<name>.yaml` and nothing else."""
        self.put({f"poolconfig-{name}.yaml": text for name, text in files.items()})

    def put(self, names: Mapping[str, str]) -> None:
        """Show files of these names and texts and nothing else."""
        self._edits += 1
        edit = self.folder / f"..edit-{self._edits}"
        edit.mkdir(parents=True)
        for name, text in names.items():
            (edit / name).write_text(text)
        data = self.folder / "..data"
        before = data.resolve()
        (self.folder / "..data_tmp").symlink_to(edit.name)
        (self.folder / "..data_tmp").rename(data)
        for link in self.folder.glob("[!.]*"):
            if link.name not in names:
                link.unlink()
        for name in names:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        if before != data:
            for old in before.iterdir():
                old.unlink()
            before.rmdir()


class Shown:
    """A ConfigMap as the API server shows it, if it does."""

    def __init__(self, **files: str) -> None:
        self.waits_s: list[float] = []
        self._entries: dict[str, bytes] | None = None
        if files:
            self.show(**files)

    def show(self, **files: str) -> None:
        self._entries = {
            f"poolconfig-{name}.yaml": text.encode(errors="surrogateescape")
            for name, text in files.items()
        }
        self._entries["other"] = b"is no pool file"

    def entries(self) -> Mapping[str, bytes] | None:
        return self._entries

    def wait(self, timeout_s: float) -> None:
        self.waits_s.append(timeout_s)
