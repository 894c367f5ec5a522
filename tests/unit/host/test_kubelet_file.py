from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.errors import ConfigError, HostFileError
from cpupool.core.node_topology import TopologyManager
from cpupool.host.kubelet_file import KubeletConfigFile, KubeletFiles, is_kubelets
from cpupool.host.root import HostRoot

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "kind: KubeletConfiguration\ntopologyManagerPolicy: {}\n"


def policy(file: KubeletConfigFile) -> TopologyPolicy | None:
    config = file.read()
    manager = config.topology_manager if config else None
    return manager.policy if manager else None


def test_the_topology_manager_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{TEXT.format('restricted')}topologyManagerScope: pod\n")
    config = KubeletConfigFile(path).read()

    assert config is not None
    assert config.topology_manager == TopologyManager(TopologyPolicy.RESTRICTED, Scope.POD)


def test_a_changed_file_is_read_again_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    file = KubeletConfigFile(path)
    path.write_text(TEXT.format("restricted"))
    first = file.read()
    assert file.read() is first

    path.write_text(TEXT.format("best-effort"))
    assert policy(file) is TopologyPolicy.BEST_EFFORT

    # The same length, and another time.
    path.write_text(TEXT.format("BEST-effort").replace("BEST-effort", "restricted "))
    os.utime(path, (1, 1))
    assert policy(file) is TopologyPolicy.RESTRICTED


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_missing_or_empty_file_is_not_known(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    file = KubeletConfigFile(path)
    assert file.read() is None

    path.write_text(text)
    assert file.read() is None

    path.write_text(TEXT.format("none"))
    assert policy(file) is TopologyPolicy.NONE

    path.unlink()
    assert file.read() is None


def test_a_mistake_is_told_until_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    file = KubeletConfigFile(path)
    path.write_text("kind: Other\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="KubeletConfiguration"):
            file.read()

    path.write_text(TEXT.format("none"))
    assert policy(file) is TopologyPolicy.NONE


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "config.yaml"
    folder.mkdir()
    with pytest.raises(HostFileError, match=r"config\.yaml.*directory; make it readable"):
        KubeletConfigFile(folder).read()


def test_a_pipe_without_a_writer_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    os.mkfifo(path)
    with pytest.raises(HostFileError, match=r"config\.yaml: this is a pipe"):
        KubeletConfigFile(path).read()


def test_a_file_that_is_too_long_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = TEXT.format("none")
    path.write_text(text.ljust(64 * 1024))
    assert policy(KubeletConfigFile(path)) is TopologyPolicy.NONE

    path.write_text(text.ljust(64 * 1024 + 1))
    with pytest.raises(HostFileError, match="more than 65536 bytes"):
        KubeletConfigFile(path).read()


def test_a_device_without_an_end_is_too_long() -> None:
    with pytest.raises(HostFileError, match="more than 65536 bytes"):
        KubeletConfigFile(Path("/dev/zero")).read()


HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


class Host:
    """A host on which a kubelet may run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = HostRoot.under(folder)
        self.root.proc.mkdir(parents=True)

    def put(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def drop_in(self, name: str, policy: str) -> Path:
        return self.put(f"etc/kubelet.d/{name}", f"{HEAD}topologyManagerPolicy: {policy}\n")

    def runs(self, *words: str, pid: int = 7) -> None:
        self.put(f"proc/{pid}/cmdline", "\0".join((*words, "")))

    def policy(self) -> str | None:
        found = policy(KubeletConfigFile(KubeletFiles(), host=self.root))
        return found.value if found else None


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


class TestTheRunningKubelet:
    """Its command line names its file and its drop-ins, and has settings itself."""

    def test_its_file_counts_in_place_of_the_usual_one(self, host: Host) -> None:
        host.put("var/lib/kubelet/config.yaml", TEXT.format("restricted"))
        host.put("etc/kubelet.yaml", TEXT.format("best-effort"))
        assert host.policy() == "restricted"

        host.runs("/usr/bin/kubelet", "--config=/etc/kubelet.yaml")
        assert host.policy() == "best-effort"

        # As in a container that has the file at its usual place.
        host.runs("/usr/bin/kubelet", "--config=/etc/unseen.yaml")
        assert host.policy() == "restricted"

    def test_drop_ins_and_flags_are_in_force(self, host: Host) -> None:
        host.put("etc/kubelet.yaml", TEXT.format("none"))
        words = ("hyperkube", "kubelet", "--config", "/etc/kubelet.yaml")
        host.runs(*words, "--config-dir", "/etc/kubelet.d")
        host.drop_in("20.conf", "restricted")
        host.drop_in("10.conf", "best-effort")
        host.drop_in("30.yaml", "single-numa-node")
        assert host.policy() == "restricted"

        host.drop_in("20.d/x.conf", "best-effort")
        assert host.policy() == "best-effort"

        host.runs(*words, "--topology-manager-policy", "single-numa-node")
        assert host.policy() == "single-numa-node"

    @pytest.mark.parametrize("flags", [(), ("--cpu-manager-policy=none",)])
    def test_without_a_file_the_defaults_are_known(
        self, host: Host, flags: tuple[str, ...]
    ) -> None:
        host.put("var/lib/kubelet/config.yaml", TEXT.format("restricted"))
        host.runs("kubelet", *flags)

        config = KubeletConfigFile(KubeletFiles(), host=host.root).read()

        assert config
        assert (config.complete, host.policy()) == (True, "none")

    def test_without_the_process_only_what_is_written_is_known(self, host: Host) -> None:
        file = host.put("var/lib/kubelet/config.yaml", HEAD)
        assert host.policy() is None

        file.write_text(TEXT.format("none"))
        assert host.policy() == "none"

        # Two, of which one is another node's in a container.
        file.write_text(HEAD)
        host.runs("kubelet", "--config=/var/lib/kubelet/config.yaml")
        assert host.policy() == "none"
        host.runs("kubelet", "--v=2", pid=8)
        assert host.policy() is None

    def test_a_file_that_is_named_and_not_there_is_not_known(self, host: Host) -> None:
        host.runs("kubelet", "--config=/etc/unseen.yaml")
        assert host.policy() is None

    def test_it_is_read_again_after_any_change_and_not_without(self, host: Host) -> None:
        host.put("etc/kubelet.yaml", HEAD)
        host.runs("kubelet", "--config=/etc/kubelet.yaml", "--config-dir=/etc/kubelet.d")
        added = host.drop_in("1.conf", "restricted")
        file = KubeletConfigFile(KubeletFiles(), host=host.root)
        first = file.read()
        assert file.read() is first

        host.drop_in("2.conf", "best-effort")
        assert policy(file) is TopologyPolicy.BEST_EFFORT
        (host.folder / "etc/kubelet.d/2.conf").unlink()
        assert policy(file) is TopologyPolicy.RESTRICTED
        added.write_text(f"{HEAD}topologyManagerPolicy: none\n")
        assert policy(file) is TopologyPolicy.NONE
        host.runs("kubelet", "--config=/etc/kubelet.yaml", "--topology-manager-policy=restricted")
        assert policy(file) is TopologyPolicy.RESTRICTED

    def test_only_its_own_file_is_the_kubelets(self, host: Host) -> None:
        path = host.put("etc/kubelet.yaml", HEAD)
        assert not is_kubelets(path, host.root)
        host.runs("kubelet", "--config=/etc/kubelet.yaml")
        assert is_kubelets(path, host.root)
        assert not is_kubelets(host.put("etc/other.yaml", HEAD), host.root)
        assert not is_kubelets(host.folder / "absent", host.root)


class TestTheFolderOfDropIns:
    """A folder that is named; what is wrong in it is said, and nothing is read."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        path = tmp_path / "kubelet.d"
        path.mkdir()
        (path / "1.conf").write_text(f"{HEAD}topologyManagerPolicy: restricted\n")
        return path

    def read(self, folder: Path | str) -> str | None:
        config = Path(folder).parent / "config.yaml"
        config.write_text(HEAD)
        found = policy(KubeletConfigFile(KubeletFiles(config, str(folder))))
        return found.value if found else None

    def test_it_is_read_without_a_process(self, folder: Path) -> None:
        assert self.read(folder) == "restricted"

    def test_a_link_is_followed_to_a_file_and_not_to_a_folder(self, folder: Path) -> None:
        link = folder.with_name("link")
        link.symlink_to(folder)
        assert self.read(link) is None
        assert self.read(f"{link}/") == "restricted"

        more = folder.with_name("more")
        more.mkdir()
        (more / "x.conf").write_text(f"{HEAD}topologyManagerPolicy: best-effort\n")
        (folder / "2.d").symlink_to(more)
        assert self.read(folder) == "restricted"
        (folder / "2.conf").symlink_to(more / "x.conf")
        assert self.read(folder) == "best-effort"

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda path: path.write_text("- a\n"), r"2\.conf:1:1: this must be a map"),
            (lambda path: path.write_bytes(b"\xff\xfe\x00"), r"2\.conf:1:1: .* is not UTF-8"),
            (lambda path: path.write_text(""), r"2\.conf.* a drop-in whose apiVersion is not"),
            (lambda path: path.write_text(HEAD.ljust(65537)), "has more than 65536 bytes; name"),
            (lambda path: path.symlink_to("/dev/zero"), "has more than 65536 bytes"),
            (lambda path: path.symlink_to(path), r"2\.conf: Too many levels of symbolic links"),
            (lambda path: path.symlink_to("nowhere"), r"2\.conf: No such file or directory; make"),
            (lambda path: path.symlink_to("."), r"2\.conf: Is a directory"),
            (os.mkfifo, r"2\.conf: this is a pipe"),
        ],
    )
    def test_a_file_that_the_kubelet_cannot_take_is_named(
        self, folder: Path, make: Callable[[Path], object], said: str
    ) -> None:
        make(folder / "2.conf")
        with pytest.raises((ConfigError, HostFileError), match=said):
            self.read(folder)

    def test_a_folder_that_is_missing_or_too_large_is_named(self, folder: Path) -> None:
        absent = folder.with_name("absent")
        with pytest.raises(HostFileError, match="absent: No such file or directory; the kubelet"):
            self.read(absent)
        absent.symlink_to(absent)
        with pytest.raises(HostFileError, match="absent: Too many levels of symbolic links; the"):
            self.read(absent)

        for number in range(256):
            (folder / f"{number}.txt").touch()
        with pytest.raises(HostFileError, match="more than 256 files and folders; the kubelet"):
            self.read(folder)
