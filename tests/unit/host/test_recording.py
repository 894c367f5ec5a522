from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from cpupool.core.errors import HostFileError
from cpupool.core.names import Names
from cpupool.host import recording
from cpupool.host.recording import Recording, extract
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from tests.machines import MACHINES
from tests.nodes import WrittenNode


def archive(path: Path, *members: tarfile.TarInfo, contents: bytes | None = None) -> Path:
    """Write an archive of empty members and, if given, a list of contents."""
    with tarfile.open(path, "w:gz") as made:
        if contents is not None:
            listed = tarfile.TarInfo(recording.CONTENTS)
            listed.size = len(contents)
            made.addfile(listed, io.BytesIO(contents))
        for member in members:
            made.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def linked(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    kept = Recording(files={"a/b": b"text", "a/c/": b""}, left_out=["d: why"])
    with (tmp_path / "b.tar.gz").open("wb") as file:
        kept.write(file)

    recorded = extract(tmp_path / "b.tar.gz", tmp_path / "out")

    assert (tmp_path / "out/a/b").read_bytes() == b"text"
    assert (tmp_path / "out/a/c").is_dir()
    contents = json.loads((tmp_path / "out" / recording.CONTENTS).read_text())
    assert (contents["files"], contents["left_out"]) == (["a/b", "a/c/"], ["d: why"])
    assert recorded.tzinfo is not None


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(tarfile.TarInfo("../outside"), id="a name that leads out"),
        pytest.param(tarfile.TarInfo("/no/such/folder/outside"), id="a name that begins elsewhere"),
        pytest.param(linked("link", "/etc/passwd", tarfile.SYMTYPE), id="a symbolic link"),
        pytest.param(linked("link", "bundle.json", tarfile.LNKTYPE), id="a hard link"),
        pytest.param(linked("pipe", "", tarfile.FIFOTYPE), id="a pipe"),
    ],
)
def test_an_archive_that_reaches_for_more_is_refused(
    tmp_path: Path, member: tarfile.TarInfo
) -> None:
    made = archive(tmp_path / "b.tar.gz", member, contents=b"{}")

    with pytest.raises(HostFileError, match=r"leads out of|is neither a file nor a folder"):
        extract(made, tmp_path / "out")

    inside = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert set(inside) <= {"b.tar.gz", recording.CONTENTS}


@pytest.mark.parametrize("mtime", ["inf", "nan", "1e300"])
def test_an_archive_of_no_time_is_refused(tmp_path: Path, mtime: str) -> None:
    member = tarfile.TarInfo("file")
    member.pax_headers = {"mtime": mtime}

    with pytest.raises(HostFileError, match="no support bundle, or a damaged one"):
        extract(archive(tmp_path / "b.tar.gz", member, contents=b"{}"), tmp_path / "out")


@pytest.mark.parametrize("what", ["_MOST_FILES", "_MOST_BYTES"])
def test_an_archive_that_is_too_large_is_refused(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, what, 1)
    member = tarfile.TarInfo("large")
    member.size = 100

    with pytest.raises(HostFileError, match="it holds more than"):
        extract(archive(tmp_path / "b.tar.gz", member, contents=b"{}"), tmp_path / "out")


@pytest.mark.parametrize(
    "contents",
    [
        None,
        b"",
        b"[]",
        b"{}",
        b'{"schema": "cpupool-bundle/1"}',
        b'{"schema": 1}',
        b"[" * 10**5,
        b'{"schema": "cpupool-bundle/1", "recorded": "2026-01-01"}',
        b'{"schema": "cpupool-bundle/1", "recorded": 1}',
    ],
)
def test_an_archive_that_is_no_bundle_is_refused(tmp_path: Path, contents: bytes | None) -> None:
    made = archive(tmp_path / "b.tar.gz", tarfile.TarInfo("a"), contents=contents)

    with pytest.raises(HostFileError, match=r"no support bundle.*; name another file"):
        extract(made, tmp_path / "out")


def test_an_archive_of_another_kind_is_refused_for_what_it_lacks(tmp_path: Path) -> None:
    made = archive(tmp_path / "b.tar.gz", tarfile.TarInfo("a"), contents=None)

    with pytest.raises(HostFileError, match=r"damaged one \(it has no bundle\.json\)"):
        extract(made, tmp_path / "out")


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "b.tar.gz", tarfile.TarInfo("a"), contents=b"{}").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(HostFileError):
        extract(tmp_path / "cut", tmp_path / "out")


def test_a_large_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_LARGEST_FILE_BYTES", 3)
    (tmp_path / "large").write_text("four")
    kept = Recording()

    kept.take(tmp_path / "large", Path("large"))
    kept.take(tmp_path / "missing", Path("missing"))

    assert not kept.files
    assert kept.left_out == ["large: it has more than 3 bytes"]


def test_a_single_pool_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    node = WrittenNode(tmp_path)
    pools = node.put("pools.txt", "pools: {}")

    kept = recording.record(
        node.root,
        Names(),
        cgroup_root="",
        config=pools,
        kubelet_config_file=node.root.kubelet / "config.yaml",
    )

    assert kept.files["etc/cpu-pooler/pools.txt"] == b"pools: {}"
    assert "var/lib/kubelet/pods" not in "".join(kept.files)
    assert not kept.left_out


def test_the_kubelets_configuration_is_the_one_in_force(tmp_path: Path) -> None:
    node = WrittenNode(tmp_path)
    path = node.put("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    node.put("etc/kubelet.d/1.conf", f"{head}topologyManagerPolicy: restricted\nclusterDNS: [a]\n")

    def kept(folder: str = "") -> Recording:
        return recording.record(
            node.root,
            Names(),
            cgroup_root="",
            config=node.pool_files,
            kubelet_config_file=path,
            kubelet_config_dir=folder,
        )

    # What another source may set is not said.
    assert json.loads(kept().files["var/lib/kubelet/config.yaml"]) == {
        "kind": "KubeletConfiguration"
    }
    written = json.loads(kept(f"{tmp_path}/etc/kubelet.d").files["var/lib/kubelet/config.yaml"])
    assert written == {"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted"}

    node.put("proc/9/cmdline", "kubelet\0--config=/var/lib/kubelet/config.yaml\0")
    written = json.loads(kept().files["var/lib/kubelet/config.yaml"])
    assert (written["topologyManagerPolicy"], written["cpuManagerPolicy"]) == ("none", "none")

    (said,) = kept(f"{tmp_path}/absent").left_out
    assert "absent: No such file or directory" in said


def test_the_nodes_of_cpus_are_read_back(tmp_path: Path) -> None:
    machine = MACHINES["telco_with_offline"]
    machine.write(tmp_path / "node")
    root = HostRoot.under(tmp_path / "node")
    system = root.sysfs / "devices/system"
    for thread in machine.layout():
        # As with numa=fake=2: only the links tell.
        (system / f"node/node{thread.node}/cpulist").write_text("0-31")
        folder = system / f"cpu/cpu{thread.cpu}"
        folder.mkdir(exist_ok=True)
        (folder / f"node{thread.node}").symlink_to(f"../../node/node{thread.node}")

    kept = recording.record(
        root, Names(), cgroup_root="", config=tmp_path, kubelet_config_file=tmp_path / "none"
    )
    with (tmp_path / "b.tar.gz").open("wb") as file:
        kept.write(file)
    extract(tmp_path / "b.tar.gz", tmp_path / "out")

    recorded = Sysfs.at(HostRoot.under(tmp_path / "out").sysfs).topology()
    assert recorded == machine.topology()


def test_a_node_without_cgroups_is_recorded_all_the_same(tmp_path: Path) -> None:
    node = WrittenNode(tmp_path)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").unlink()

    kept = recording.record(
        node.root,
        Names(),
        cgroup_root="",
        config=node.pool_files,
        kubelet_config_file=node.root.kubelet / "config.yaml",
    )

    assert "etc/cpu-pooler/poolconfig-a.yaml" in kept.files
    assert "no cgroup v2 with the cpuset controller" in kept.left_out[0]
