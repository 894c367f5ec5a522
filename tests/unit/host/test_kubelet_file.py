from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpupool.core.cpu_manager import Scope, TopologyPolicy
from cpupool.core.errors import ConfigError, HostFileError
from cpupool.core.node_topology import TopologyManager
from cpupool.host.kubelet_file import KubeletConfigFile

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
