"""Debian packages of other suites, unpacked beside the machine's own: nothing is installed.

    unpacked("trixie", "containerd", "runc") / "usr/bin/containerd"

Packages come from where this machine's own do: its entries in /etc/apt with the suite's name put in
place of the machine's. They are unpacked once into `$CPUPOOL_VM_CACHE` (`~/.cache/cpupool/vm`
without), by version; an index that was downloaded is used until a package of it is gone from the
mirror, so that a machine that has run the tests once needs no network. Remove the folder for
newer packages.

Where that cannot be done, the test that asks is skipped with the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_APT = Path("/etc/apt")
_DOWNLOAD_TIMEOUT_S = 600.0
# The machine's own proxies and credentials stay in force, its hooks and pins do not.
_CONFIGURATION = """\
#clear APT::Update;
Dir::State "{private}/state";
Dir::State::status "{private}/status";
Dir::Cache "{private}/cache";
Dir::Cache::pkgcache "packages.bin";
Dir::Etc::SourceList "{private}/sources.list";
Dir::Etc::SourceParts "{private}/sources.list.d";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Architecture "amd64";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
"""


def cache() -> Path:
    """Give the folder of all that is downloaded or made from it; it is outside the repository."""
    given = os.environ.get("CPUPOOL_VM_CACHE")
    folder = Path(given) if given else Path.home() / ".cache/cpupool/vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time do what `name` stands for."""
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpacked(suite: str, *packages: str) -> Path:
    """Give the folder that has the files of `packages`, and of nothing that they depend on.

    Args:
        suite: a Debian release, such as `trixie`.
        packages: their names.
    """
    with locked(f"apt-{suite}"):
        apt = _Apt(suite)
        archives = apt.archives(packages)
        digest = hashlib.sha256("\n".join(archives).encode()).hexdigest()[:12]
        tree = cache() / "unpacked" / f"{suite}-{packages[0]}-{digest}"
        if not tree.exists():
            tree.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=tree.parent) as made:
                apt.unpack(packages, Path(made))
                (Path(made) / "tree").rename(tree)
    return tree


def depended(suite: str, package: str) -> tuple[str, ...]:
    """Name what `package` depends on: what a metapackage such as `linux-image-amd64` stands for."""
    with locked(f"apt-{suite}"):
        told = _Apt(suite).run("apt-cache", "depends", "--important", package)
    return tuple(re.findall(r"^ *Depends: ([^<\s]+)$", told, re.MULTILINE))


class _Apt:
    """apt with a configuration, an index and a cache of its own for one suite."""

    def __init__(self, suite: str) -> None:
        for tool in ("apt-get", "dpkg"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not here: packages are unpacked on Debian machines only")
        self._suite = suite
        self._private = cache() / "apt" / suite
        if not (self._private / "indexed").exists():
            self._index()

    def archives(self, packages: tuple[str, ...]) -> list[str]:
        """Name the archives, with versions."""
        lines = self.run("apt-get", "download", "--print-uris", *packages).splitlines()
        return sorted(line.split()[1] for line in lines)

    def unpack(self, packages: tuple[str, ...], folder: Path) -> None:
        """Unpack into `folder`/tree."""
        try:
            self._ran("apt-get", "download", *packages, within=folder)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self._index()  # the mirror has newer ones by now
            self.run("apt-get", "download", *packages, within=folder)
        for archive in folder.glob("*.deb"):
            self.run("dpkg", "-x", str(archive), str(folder / "tree"))

    def run(self, *command: str, within: Path | None = None) -> str:
        """Run one command of apt and give its output; the test is skipped where it fails."""
        try:
            return self._ran(*command, within=within)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            lines = str(error.stderr or error).splitlines() or [""]
            said = next((line for line in lines if line.startswith("E:")), lines[-1])
            pytest.skip(
                f"{' '.join(command[:2])} for Debian's {self._suite} failed: {said}; "
                "it takes Debian's own entries in /etc/apt, and the network once"
            )

    def _ran(self, tool: str, *arguments: str, within: Path | None = None) -> str:
        # Read after the machine's own settings, where $APT_CONFIG would be read before them.
        settings = ("-c", str(self._private / "apt.conf")) if tool.startswith("apt") else ()
        return subprocess.run(
            (tool, *settings, *arguments),
            check=True,
            capture_output=True,
            text=True,
            cwd=within,
            timeout=_DOWNLOAD_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        ).stdout

    def _index(self) -> None:
        shutil.rmtree(self._private, ignore_errors=True)
        for made in ("state/lists/partial", "cache/archives/partial", "sources.list.d"):
            (self._private / made).mkdir(parents=True)
        (self._private / "status").touch()
        (self._private / "apt.conf").write_text(_CONFIGURATION.format(private=self._private))
        own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        for file in (_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*.*"))):
            if file.suffix in {".list", ".sources"} and file.exists():
                entries = _entries(file.read_text(), own, self._suite)
                (self._private / "sources.list.d" / file.name).write_text(entries)
        self.run("apt-get", "update", "--error-on=any")
        (self._private / "indexed").touch()


def _entries(text: str, own: str, suite: str) -> str:
    """Keep the entries of the suite `own` (and its updates), and make them those of `suite`.

    Of both formats of sources.list(5): one entry a line, and paragraphs of fields.
    """
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n", text) if "Suites:" in text else text.splitlines()
    release = re.compile(rf"(?<=\s){re.escape(own)}(?=[\s-])")
    return "\n\n".join(release.sub(suite, one) for one in paragraphs if release.search(one)) + "\n"
