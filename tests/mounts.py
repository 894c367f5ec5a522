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
