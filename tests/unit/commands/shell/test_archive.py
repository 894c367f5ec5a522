from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from cpupool.commands.shell import archive
from cpupool.commands.shell.exit_codes import UsageError
from cpupool.core.errors import HostFileError
from cpupool.host.recording import Recording

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_has_the_rights_that_are_asked_for(tmp_path: Path) -> None:
    kept = archive.write_file(tmp_path / "a", "--output", 0o600, Recording)

    assert kept.files == {}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match="is there already; name another file with --record"):
        archive.write_file(tmp_path / "a", "--record", 0o600, Recording)

    assert not (tmp_path / "elsewhere").exists()


def test_what_fails_while_it_is_collected_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Recording:
        raise OSError(28, "No space left on device")

    with pytest.raises(HostFileError, match=r"cannot be written .No space left on device.; name"):
        archive.write_file(tmp_path / "a", "--record", 0o600, failing)

    assert not list(tmp_path.iterdir())
