from __future__ import annotations

import errno
import fcntl
import io
import os
import tarfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import HostFileError
from cpupool.core.topology import CoreType
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import FolderTree, RecordedTree, Sysfs, open_topology
from tests.machines import MACHINES
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cpupool.core.topology import CPUTopology

CPU = "devices/system/cpu"
NODE = "devices/system/node"


def read(files: Mapping[str, str]) -> CPUTopology:
    return Sysfs(RecordedTree("recorded", files)).topology()


def two_cpus(**more: str) -> dict[str, str]:
    """Give two online CPUs; `__` in a name stands for a slash below the CPU folder."""
    return {
        f"{CPU}/online": "0-1",
        f"{CPU}/present": "0-1",
        **{f"{CPU}/{name.replace('__', '/')}": text for name, text in more.items()},
    }


def pack(path: Path, files: Mapping[str, str], prefix: str = "sys/") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


class TestCores:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("core_cpus_list", "0-1"),
            ("core_cpus", "3"),
            ("thread_siblings_list", "0-1"),
            ("thread_siblings", "00000000,00000003"),
        ],
    )
    def test_siblings_come_from_whichever_file_the_kernel_has(self, name: str, text: str) -> None:
        files = two_cpus() | {f"{CPU}/cpu{cpu}/topology/{name}": text for cpu in (0, 1)}

        assert read(files).cores == (CPUSet.of(0, 1),)

    def test_the_newer_name_goes_before_the_older(self) -> None:
        files = two_cpus(
            cpu0__topology__core_cpus_list="0", cpu0__topology__thread_siblings_list="0-1"
        )

        assert read(files).cores == (CPUSet.of(0), CPUSet.of(1))

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("package_cpus_list", "1"),
            ("package_cpus", "2"),
            ("core_siblings_list", "1"),
            ("core_siblings", "00000002"),
        ],
    )
    def test_packages_come_from_whichever_file_the_kernel_has(self, name: str, text: str) -> None:
        files = two_cpus() | {
            f"{CPU}/cpu0/topology/{name}": "1",
            f"{CPU}/cpu1/topology/{name}": text,
        }
        files[f"{CPU}/cpu0/topology/{name}"] = "0" if name.endswith("_list") else "1"

        assert read(files).sockets == (CPUSet.of(0), CPUSet.of(1))

    def test_a_machine_whose_kernel_tells_nothing_is_one_package_of_single_cores(self) -> None:
        topology = read(two_cpus())

        assert topology.cores == (CPUSet.of(0), CPUSet.of(1))
        assert topology.sockets == (CPUSet.of(0, 1),)
        assert topology.l3 == topology.dies == ()
        assert topology.nodes == {}
        assert topology.distances == {}
        assert topology.hybrid == {}
        assert {info.core_id for info in topology.cpus.values()} == {None}

    def test_an_id_of_minus_one_is_none(self) -> None:
        files = two_cpus(
            cpu0__topology__physical_package_id="-1",
            cpu0__topology__core_id="4",
            cpu0__topology__die_id="-1",
            cpu0__topology__die_cpus_list="0",
            cpu1__topology__die_id="-1",
            cpu1__topology__die_cpus_list="1",
        )
        topology = read(files)

        assert topology.cpus[0].package_id is None
        assert topology.cpus[0].core_id == 4
        assert topology.dies == ()

    def test_hybrid_cores_are_distinguished(self) -> None:
        files = two_cpus() | {"devices/cpu_core/cpus": "0", "devices/cpu_lowpower/cpus": "1"}

        kinds = [info.core_type for info in read(files).cpus.values()]

        assert kinds == [CoreType.PERFORMANCE, CoreType.LOW_POWER]


class TestOnline:
    def test_without_a_list_a_cpu_is_online_unless_it_says_0(self) -> None:
        files = {
            f"{CPU}/cpu0/topology/core_id": "0",
            f"{CPU}/cpu2/online": "1",
            f"{CPU}/cpu10/online": "0",
            f"{CPU}/cpufreq/boost": "0",
        }
        topology = read(files)

        assert topology.online == CPUSet.of(0, 2)
        assert topology.present == CPUSet.of(0, 2, 10)

    def test_an_offline_cpu_that_still_has_a_topology_is_in_no_group(self) -> None:
        files = two_cpus(online="1") | {
            f"{CPU}/cpu{cpu}/topology/core_cpus_list": "0-1" for cpu in (0, 1)
        }

        assert read(files).cores == (CPUSet.of(1),)

    def test_isolated_cpus_are_read(self) -> None:
        assert read(two_cpus(isolated="1")).isolated == CPUSet.of(1)

    def test_no_cpu_at_all_is_refused(self) -> None:
        with pytest.raises(HostFileError, match="recorded: no CPU in devices/system/cpu; give"):
            read({"kernel/profiling": "0"})

    def test_online_costs_one_file(self) -> None:
        asked: Counter[str] = Counter()

        class Counting(RecordedTree):
            def read(self, path: str) -> str | None:
                asked[path] += 1
                return super().read(path)

        Sysfs(Counting("recorded", two_cpus())).online()

        assert asked == {f"{CPU}/online": 1}

    def test_a_reading_in_which_a_cpu_goes_offline_is_done_again(self) -> None:
        answers = iter(["0-1", "0", "0", "0"])
        tree = Changing(two_cpus(), answers)

        assert Sysfs(tree).topology().online == CPUSet.of(0)

    def test_cpus_that_come_and_go_all_the_time_are_an_error(self) -> None:
        tree = Changing(two_cpus(), iter(["0-1", "0"] * 3))

        with pytest.raises(HostFileError, match="changed during each of 3 readings; try again"):
            Sysfs(tree).topology()


class Changing(RecordedTree):
    """A machine whose list of online CPUs reads otherwise each time."""

    def __init__(self, files: Mapping[str, str], answers: Iterable[str]) -> None:
        super().__init__("recorded", files)
        self.answers = iter(answers)

    def read(self, path: str) -> str | None:
        return next(self.answers) if path == f"{CPU}/online" else super().read(path)


class TestCaches:
    @pytest.mark.parametrize(
        ("cache", "expected"),
        [
            pytest.param({"index0": "1", "index1": "3"}, "0-1", id="level 3 behind level 1"),
            pytest.param({"index0": "3"}, "0-1", id="level 3 alone"),
            pytest.param({"index0": "1", "index1": "2"}, None, id="no level 3"),
        ],
    )
    def test_an_l3_group_shares_a_cache_of_level_3(
        self, cache: dict[str, str], expected: str | None
    ) -> None:
        files = two_cpus()
        for cpu in (0, 1):
            for index, level in cache.items():
                files[f"{CPU}/cpu{cpu}/cache/{index}/level"] = level
                files[f"{CPU}/cpu{cpu}/cache/{index}/shared_cpu_map"] = "3" if level == "3" else "1"

        assert [str(group) for group in read(files).l3] == ([expected] if expected else [])

    def test_an_l3_cache_that_names_no_cpus_makes_no_group(self) -> None:
        assert read(two_cpus(cpu0__cache__index0__level="3")).l3 == ()


class TestNodes:
    def test_node_lists_are_cut_to_the_online_cpus_and_ids_may_have_gaps(self) -> None:
        files = two_cpus() | {
            f"{NODE}/node0/cpulist": "0-87",
            f"{NODE}/node250/cpulist": "",
            f"{NODE}/node8/cpumap": "00000000",
            f"{NODE}/node33/distance": "10 21",
            f"{NODE}/possible": "0-255",
        }
        topology = read(files)

        assert topology.nodes == {0: CPUSet.of(0, 1), 8: CPUSet(), 33: CPUSet(), 250: CPUSet()}
        assert list(topology.nodes) == [0, 8, 33, 250]
        assert topology.distances == {33: (10, 21)}

    FAKE = two_cpus() | {f"{NODE}/node{node}/cpulist": "0-1" for node in range(4)}
    """As with numa=fake=4: every node lists the CPUs of the one real node."""

    def test_a_cpu_is_on_the_node_of_its_link_alone(self) -> None:
        links = {f"{CPU}/cpu0/node2": "", f"{CPU}/cpu1/node0": ""}

        topology = read(self.FAKE | links)

        assert topology.nodes == {0: CPUSet.of(1), 1: CPUSet(), 2: CPUSet.of(0), 3: CPUSet()}
        assert [topology.node_of(cpu) for cpu in (0, 1)] == [2, 0]

    def test_without_links_a_cpu_is_on_the_lowest_node_that_lists_it(self) -> None:
        assert read(self.FAKE).nodes[0] == CPUSet.of(0, 1)
        assert read(self.FAKE).node_of(1) == 0

    @pytest.mark.parametrize("listed", ["", "0-1"])
    def test_a_link_counts_without_a_list_too(self, listed: str) -> None:
        topology = read(two_cpus() | {f"{CPU}/cpu1/node7": "", f"{NODE}/node3/cpulist": listed})

        assert topology.nodes[7] == CPUSet.of(1)
        assert topology.nodes[3] == CPUSet.parse_or_empty(listed) - CPUSet.of(1)


class TestDamage:
    @pytest.mark.parametrize(
        ("path", "text"),
        [
            (f"{CPU}/online", "0-x"),
            (f"{CPU}/present", "9-1"),
            (f"{CPU}/cpu0/topology/core_cpus_list", "0,,1"),
            (f"{CPU}/cpu0/topology/thread_siblings", "zz"),
            (f"{CPU}/cpu0/topology/core_id", "one"),
            (f"{NODE}/node0/distance", "10 far"),
            (f"{NODE}/node0/cpumap", ""),
        ],
    )
    def test_a_damaged_file_is_named(self, path: str, text: str) -> None:
        with pytest.raises(HostFileError) as caught:
            read(two_cpus() | {path: text})

        assert caught.value.path == f"recorded/{path}"
        assert "; record the machine again" in str(caught.value)


class TestFolders:
    @pytest.mark.parametrize("given", [".", "sys"])
    def test_a_copy_is_given_as_what_is_above_sys_or_as_sys_itself(
        self, given: str, tmp_path: Path
    ) -> None:
        machine = MACHINES["laptop_4c8t"]
        machine.write(tmp_path)

        assert open_topology(str(tmp_path / given)) == machine.topology()

    @pytest.mark.parametrize("word", ["this", "sysfs"])
    def test_this_machine_has_the_cpu_that_we_run_on(self, word: str) -> None:
        status = Path("/proc/self/status").read_text()
        allowed = next(
            line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list")
        )

        assert CPUSet.parse(allowed) <= open_topology(word).present

    def test_a_file_that_vanishes_while_it_is_read_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(_path: Path) -> bytes:
            raise OSError(errno.ENODEV, "No such device")

        monkeypatch.setattr(Path, "read_bytes", gone)

        assert FolderTree(tmp_path).read("devices/system/cpu/cpu1/topology/core_id") is None

    def test_a_list_that_the_kernel_gives_page_by_page_is_read_whole(self, tmp_path: Path) -> None:
        text = ",".join(map(str, range(0, 8192, 2)))
        file = tmp_path / "cpulist"
        os.mkfifo(file)

        def give() -> None:
            with file.open("wb", buffering=0) as pipe:
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
                pipe.write(text.encode())

        writer = threading.Thread(target=give)
        writer.start()
        assert FolderTree(tmp_path).read("cpulist") == text
        writer.join(DEADLINE_S)

    def test_what_is_not_there_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        tree = FolderTree(tmp_path)

        assert tree.read("file/online") is None
        assert tree.read("nothing") is None
        assert list(tree.names("file")) == []
        assert list(tree.names("nothing")) == []

    def test_what_cannot_be_read_is_an_error(self, tmp_path: Path) -> None:
        tree = FolderTree(tmp_path)

        with pytest.raises(HostFileError, match="Is a directory; make it readable"):
            tree.read(".")
        with pytest.raises(HostFileError, match="File name too long; make it readable"):
            tree.names("n" * 300)


class TestArchives:
    @pytest.mark.parametrize("prefix", ["sys/", "./sys/", "host-7/sys/", ""])
    def test_members_may_have_anything_before_devices(self, prefix: str, tmp_path: Path) -> None:
        machine = MACHINES["telco_with_offline"]
        files = machine.files(CPUSet.parse(machine.offline))
        archive = pack(tmp_path / "recorded.tar.gz", files, prefix)

        assert open_topology(str(archive)) == machine.topology()

    def test_links_to_nodes_are_read_from_a_folder_and_from_its_archive(
        self, tmp_path: Path
    ) -> None:
        for path, text in TestNodes.FAKE.items():
            file = tmp_path / "sys" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for cpu in (0, 1):
            folder = tmp_path / f"sys/{CPU}/cpu{cpu}"
            folder.mkdir()
            (folder / "node2").symlink_to("../../node/node2")
        with tarfile.open(tmp_path / "recorded.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "sys", "sys")

        for source in ("", "recorded.tar.gz"):
            topology = open_topology(str(tmp_path / source))
            assert topology.nodes == {
                node: CPUSet.parse_or_empty("0-1" if node == 2 else "") for node in range(4)
            }

    def test_files_may_be_padded_with_nul_bytes(self, tmp_path: Path) -> None:
        files = {
            f"{CPU}/online": "0-1\n" + "\0" * 4092,
            f"{CPU}/cpu1/topology/core_id": "5\n\0",
        }
        topology = open_topology(str(pack(tmp_path / "recorded.tar.gz", files)))

        assert topology.online == CPUSet.of(0, 1)
        assert topology.cpus[1].core_id == 5

    def test_links_and_other_files_are_passed_over(self, tmp_path: Path) -> None:
        path = pack(tmp_path / "recorded.tar.gz", {"kernel/profiling": "0"} | two_cpus())
        with tarfile.open(path, "r:gz") as old:
            members = [(member, old.extractfile(member)) for member in old]
            with tarfile.open(tmp_path / "linked.tar.gz", "w:gz") as new:
                for member, content in members:
                    new.addfile(member, content)
                link = tarfile.TarInfo(f"sys/{NODE}/node0/cpu0")
                link.type = tarfile.SYMTYPE
                link.linkname = "../../cpu/cpu0"
                new.addfile(link)

        topology = open_topology(str(tmp_path / "linked.tar.gz"))

        assert topology.online == CPUSet.of(0, 1)
        assert topology.nodes == {}


def sparse(places: str) -> bytes:
    """Return an archive of a file with holes at these places."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.PAX_FORMAT) as new:
        member = tarfile.TarInfo("sys/devices/system/cpu/online")
        member.pax_headers = {"GNU.sparse.map": places}
        new.addfile(member)
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "no such file or folder", id="nothing there"),
        pytest.param(b"0-3\n", "no .tar.gz, or a damaged one", id="a text file"),
        pytest.param(b"", "no .tar.gz, or a damaged one", id="an empty file"),
        pytest.param(b"\x1f\x8b\x08" + b"x" * 99, "no .tar.gz, or a damaged one", id="bad gzip"),
        pytest.param(
            sparse("a,b"), "no .tar.gz, or a damaged one", id="a bad map of a sparse file"
        ),
    ],
)
def test_what_is_no_machine_is_refused_with_what_to_give(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "recorded.tar.gz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(HostFileError) as caught:
        open_topology(str(path))

    message = str(caught.value)
    assert message.startswith(f"{path}: {reason}")
    assert message.endswith("a folder that holds sys/devices/system/cpu, or a .tar.gz of one")
    assert "\n" not in message


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_an_archive_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    machine = MACHINES["laptop_4c8t"]
    path = pack(tmp_path / "recorded.tar.gz", machine.files(CPUSet()))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(HostFileError, match="damaged"):
        open_topology(str(path))


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(HostFileError, match="File name too long"):
        open_topology("n" * 300)


def test_switching_cpus_off_and_on_shows_in_a_written_machine(tmp_path: Path) -> None:
    machine = MACHINES["laptop_4c8t"]
    written = machine.write(tmp_path)

    written.switch_off(CPUSet.of(3))
    off = written.topology()
    written.switch_on(CPUSet.of(3))

    assert off.online == CPUSet.parse("0-2,4-7")
    assert str(off.nodes[0]) == "0-2,4-7"
    assert off.cores[1] == CPUSet.of(2)
    assert not (written.sys / CPU / "cpu3" / "cache" / "index4").exists()
    assert written.topology() == machine.topology()


def test_the_trees_of_a_machine_can_be_moved_below_a_folder() -> None:
    root = HostRoot.under(Path("/host"))

    assert root.sysfs == Path("/host/sys")
    assert root.cgroup == Path("/host/sys/fs/cgroup")
    assert root.kubelet_socket == Path("/host/var/lib/kubelet/device-plugins/kubelet.sock")
    assert root.podresources_socket == Path("/host/var/lib/kubelet/pod-resources/kubelet.sock")
    assert root.checkpoint.parent == root.device_plugins


@pytest.mark.parametrize(
    ("text", "cpus"), [(None, ""), ("", ""), ("(null)\n", ""), ("2-3,6\n", "2-3,6")]
)
def test_tickless_cpus_are_those_that_the_kernel_names(text: str | None, cpus: str) -> None:
    files = {} if text is None else {"devices/system/cpu/nohz_full": text.strip()}

    assert Sysfs(RecordedTree("recorded", files)).tickless() == CPUSet.parse(cpus)
