"""A containerd of the tests' own, with runc and NRI, on this machine.

    with ContainerdHost(folder) as host, CRIClient(host.root.cri_sockets[0]) as cri:
        ...

The programs come from Debian packages that are only unpacked (`tests.vm.packages`): containerd of
a later release, whose NRI is what nodes have, and runc of this machine's own, which fits its libc.
Sockets, images and state are in `folder`, which plays `/` for cpupool (`--host-root`): this
machine's /sys and /proc are linked into it.

containerd, its shims and all containers live in a PID namespace and a mount namespace whose first
process reads a pipe of this process. Whatever ends this process closes the pipe, and the kernel
then ends all of them and drops their mounts. Their cgroups are below `/cpupool-test-<pid>-...`,
which is removed at the end, and left empty by a process that was killed.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest

from cpupool.host.root import HostRoot
from tests.containerd import images
from tests.containerd.cri_client import CRIClient
from tests.vm.packages import unpacked
from tests.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITE: Final = "forky"
"""The Debian release whose containerd is taken: 2.1. That of trixie is 1.7."""

_CGROUPS: Final = Path("/sys/fs/cgroup")
_HOLDER: Final = """
mount -t tmpfs none "$0" && mount -t tmpfs none /var/lib && ln -s "$1" /var/lib/cpupool &&
echo ready && cat; :
"""
"""Ends with its input. The shell stays for the sake of orphans: it waits for each process that
ends. Images and snapshots are in memory, so that a busy disk delays nothing. The agent's folder is
where the agent says that the runtime finds it: containers mount it."""


def why_not() -> str:
    """Say why no runtime can be run here, or nothing."""
    if os.geteuid() != 0:
        return "containers are made by root only"
    if not os.access(_CGROUPS, os.W_OK):
        return f"{_CGROUPS} is not writable"
    return ""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where containerd, its shim, ctr and runc are.

    Attributes:
        path: the folders, as in PATH.
        major: containerd's version: 1 or 2.
    """

    path: str
    major: int

    @classmethod
    def of(cls, suite: str) -> Programs:
        """Get those of a Debian release, and runc of this machine's; skips without them."""
        own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        trees = unpacked(suite, "containerd"), unpacked(own, "runc")
        path = ":".join(str(tree / place) for tree in trees for place in ("usr/bin", "usr/sbin"))
        told = {name: _told(path, name) for name in ("containerd", "runc")}
        version = re.search(r" v?(\d+)\.\d+\.\d+", told["containerd"])
        assert version, told
        return cls(path, int(version[1]))


def _told(path: str, program: str) -> str:
    words = ["env", f"PATH={path}:{os.environ['PATH']}", program, "--version"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip(f"{program} does not run here: {told.stderr.strip()}")
    return told.stdout


class ContainerdHost:
    """A running containerd. Use it as a context manager.

    Args:
        folder: of this host alone; its path must leave room for a socket's name.
        suite: the Debian release whose containerd it is.
        nri_timeout_s: how long a plugin may take to register and to answer.
        passing: containers get all annotations of their pods.

    Attributes:
        folder: plays `/`.
        root: the places in it.
        cgroup_root: what plays the kubelet's `--cgroup-root`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        suite: str = SUITE,
        nri_timeout_s: float = 2.0,
        passing: bool = False,
    ) -> None:
        self.folder = folder
        self.root = HostRoot.under(folder)
        self.cgroup_root = f"/cpupool-test-{os.getpid()}-{secrets.token_hex(4)}"
        self._suite = suite
        self._nri_timeout_s = nri_timeout_s
        self._passing = passing
        self._state = folder / "var/lib/containerd"
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        if reason := why_not():
            pytest.skip(reason)
        programs = Programs.of(self._suite)
        self._environment = {**os.environ, "PATH": f"{programs.path}:{os.environ['PATH']}"}
        image = images.archive(self.folder)
        for name in ("sys", "proc"):
            (self.folder / name).symlink_to(f"/{name}")
        (self.folder / "config.toml").write_text(self._config(programs.major))
        self._state.mkdir(parents=True)
        with ExitStack() as undo:
            undo.callback(self.remove_cgroup)
            for level in ("kubepods/burstable", "kubepods/besteffort"):
                self.make_cgroup(level)
            self._holder = undo.enter_context(self._namespaces())
            self.start()
            undo.callback(self.stop)
            self._import(image)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def socket(self) -> Path:
        """Where it listens for CRI calls."""
        return self.root.cri_sockets[0]

    @property
    def pid(self) -> int:
        """The process of this one's that runs containerd."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What containerd has written."""
        return (self.folder / "containerd.log").read_text()

    def make_cgroup(self, path: str) -> None:
        """Make a cgroup below the own root in every hierarchy, as the kubelet does for a pod."""
        levels = Path(self.cgroup_root.strip("/"), path)
        for hierarchy in _hierarchies():
            for level in (*reversed(levels.parents[:-1]), levels):
                _make(hierarchy / level)

    def remove_cgroup(self, path: str = "") -> None:
        """Remove a cgroup whose processes have ended or are about to."""
        for mounted in _hierarchies():
            place = mounted / self.cgroup_root.strip("/") / path
            eventually(partial(_removed, place), f"nothing is left in {place}")

    def start(self) -> None:
        """Start containerd, and wait until it serves."""
        command = [
            *("nsenter", "--target", str(self._holder), "--mount", "--pid"),
            *("containerd", "--config", str(self.folder / "config.toml")),
        ]
        with (self.folder / "containerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stderr=log, stdout=log
            )
        with CRIClient(self.socket) as cri:
            eventually(lambda: self._process.poll() is not None or cri.ready(), lambda: self.log)
        assert self._process.poll() is None, self.log

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End containerd; its containers go on."""
        if self._process.poll() is None:
            os.kill(_child(self._process), number)
            self._process.wait(DEADLINE_S)

    def restart(self, number: int = signal.SIGTERM) -> None:
        """End containerd and start it again."""
        self.stop(number)
        self.start()

    @contextmanager
    def _namespaces(self) -> Iterator[int]:
        """Make the namespaces, and give the process that holds them."""
        of_agent = self.folder / "var/lib/cpupool"
        of_agent.mkdir(parents=True, exist_ok=True)
        command = [
            *("unshare", "--mount", "--pid", "--fork", "--mount-proc"),
            *("sh", "-c", _HOLDER, str(self._state), str(of_agent)),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as unshare:
            assert unshare.stdout
            assert unshare.stdout.readline(), "the namespaces are made"
            yield _child(unshare)

    def _import(self, image: Path) -> None:
        subprocess.run(
            [
                *("ctr", "--address", str(self.socket), "--namespace", "k8s.io"),
                *("images", "import", "--local", "--no-unpack", str(image)),
            ],
            env=self._environment,
            check=True,
            capture_output=True,
        )
        with CRIClient(self.socket) as cri:
            eventually(lambda: cri.has_image(images.PROBE), "the runtime knows the image")

    def _config(self, major: int) -> str:
        run = self.root.runtime
        version, cri, plugin = (2, _CRI_1, "grpc.v1.cri")
        if major > 1:
            version, cri, plugin = (3, _CRI_2, "cri.v1.runtime")
        if self._passing:
            cri += _PASSING.format(plugin=plugin)
        return f"""
version = {version}
root = "{self._state}"
state = "{run}/containerd"
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.socket}.ttrpc"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  disable_connections = false
  socket_path = "{self.root.nri_socket}"
  plugin_path = "{self.folder}/opt/nri/plugins"
  plugin_config_path = "{self.folder}/etc/nri/conf.d"
  plugin_registration_timeout = "{self._nri_timeout_s}s"
  plugin_request_timeout = "{self._nri_timeout_s}s"
{cri}
"""


# The native snapshotter works on every file system. Sandboxes use the host's network, so no network
# plugin is needed.
_SETTINGS: Final = """
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
"""
_CRI_1: Final = f"""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PROBE}"
{_SETTINGS}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
_CRI_2: Final = f"""
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PROBE}"
[plugins."io.containerd.cri.v1.runtime"]
{_SETTINGS}
"""
_PASSING: Final = """
[plugins."io.containerd.{plugin}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["*/*"]
"""


def _hierarchies() -> Iterator[Path]:
    """Give where cgroup hierarchies of either version are mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            yield Path(place)


def _make(cgroup: Path) -> None:
    above = cgroup.parent
    controllers = above / "cgroup.controllers"
    unified = controllers.exists()
    if unified:
        enabled = " ".join(f"+{one}" for one in controllers.read_text().split())
        (above / "cgroup.subtree_control").write_text(enabled)
    try:
        cgroup.mkdir()
    except FileExistsError:
        return
    for name in ("cpuset.mems", "cpuset.cpus"):
        # A new cpuset of version 1 is empty, and takes no process then.
        if not unified and (above / name).exists():
            (cgroup / name).write_text((above / name).read_text())


def _removed(cgroup: Path) -> bool:
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    return not cgroup.exists()


def _child(parent: subprocess.Popen[bytes]) -> int:
    """Give a process's only child."""
    return int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
