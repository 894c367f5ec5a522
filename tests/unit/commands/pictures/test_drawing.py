from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from cpupool.commands.pictures import drawing
from cpupool.commands.pictures.painting import Mark, Painting, paint_pools
from cpupool.commands.shell import reasons
from cpupool.core.assignments import Placement
from cpupool.core.cgroups import Writer
from cpupool.core.cpu_manager import CPUManager, SystemPods
from cpupool.core.cpuset import CPUSet
from cpupool.core.pools import MixedCPUs, NodePools, Pool
from cpupool.manager.report import ContainerStatus, InBubble, NodeStatus, OwnChanges
from cpupool.policies.view import DEFAULT, SYSTEM
from tests.machines import MACHINES, Machine
from tests.pictures import POOLS, TELCO, ids

if TYPE_CHECKING:
    from pathlib import Path

    from cpupool.core.topology import CPUTopology


def drawn(topology: CPUTopology, painting: Painting | None = None, width: int = 80) -> str:
    """Draw without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(drawing.Picture(topology, painting or Painting()))
    return capture.get()


def all_marked(topology: CPUTopology) -> Painting:
    mark = Mark("#", "black on white")
    return Painting(dict.fromkeys(topology.present, mark))


class TestPicture:
    @pytest.mark.parametrize("width", [80, 100, 200])
    @pytest.mark.parametrize("name", MACHINES)
    def test_every_cpu_is_drawn_once_and_within_the_width(self, name: str, width: int) -> None:
        topology = MACHINES[name].topology()

        picture = drawn(topology, all_marked(topology), width)

        assert ids(picture, "#") == list(topology.online)
        assert ids(picture, "x") == list(topology.present - topology.online)
        assert max(map(len, picture.splitlines())) <= width

    def test_threads_of_a_core_stand_below_each_other(self) -> None:
        lines = drawn(Machine(cores=2, threads=2).topology()).splitlines()

        assert lines[2:4] == [
            "│  0    1                       │",
            "│  2    3                       │",
        ]

    def test_a_blank_line_parts_the_cores_of_two_rows(self) -> None:
        lines = drawn(Machine(cores=20, threads=2).topology()).splitlines()

        assert [line.strip("│ ")[:2] for line in lines[2:7]] == ["0 ", "20", "", "10", "30"]

    @pytest.mark.parametrize("offline", ["", "1-63"])
    def test_a_row_of_tiles_leaves_room_for_the_box_around_it(self, offline: str) -> None:
        topology = Machine(cores=64, offline=offline).topology()

        # One more tile per row would fit without the box.
        picture = drawn(topology, all_marked(topology), width=78)

        assert ids(picture, "#") == list(topology.online)
        assert ids(picture, "x") == list(topology.present - topology.online)

    def test_an_offline_sibling_stands_in_its_core(self) -> None:
        topology = Machine(cores=2, threads=2).having_lost(CPUSet.of(3))

        lines = drawn(topology).splitlines()

        assert lines[2:4] == [
            "│  0    1                       │",
            "│  2    3x                      │",
        ]
        assert "offline" in lines[-1]

    def test_cpus_whose_core_is_not_known_have_a_box_of_their_own(self) -> None:
        picture = drawn(MACHINES["telco_with_offline"].topology())

        assert "─ offline ─" in picture
        assert ids(picture, "x") == [5, 16, 17, 18, 19]

    def test_a_level_with_one_part_shares_its_parents_box(self) -> None:
        assert "─ socket 1, NUMA node 1, L3 1 ─" in drawn(TELCO.topology())

    @pytest.mark.parametrize(
        ("name", "titles"),
        [
            ("epyc_like", ["socket 1", "NUMA node 3", "L3 7"]),
            ("two_dies", ["socket 1", "die 3, NUMA node 3, L3 3"]),
            ("hybrid", ["socket 0, NUMA node 0, L3 0", "performance cores", "efficiency cores"]),
            ("arm_no_smt", ["socket 0, NUMA node 0", "socket 1, NUMA node 1"]),
            ("sparse_nodes", ["NUMA node 45, L3 3"]),
        ],
    )
    def test_boxes_say_what_they_are(self, name: str, titles: list[str]) -> None:
        picture = drawn(MACHINES[name].topology())

        for title in titles:
            assert f"─ {title} ─" in picture

    def test_nodes_without_cpus_and_isolated_cpus_are_reported(self, tmp_path: Path) -> None:
        written = MACHINES["sparse_nodes"].write(tmp_path)
        (written.sys / "devices/system/cpu/isolated").write_text("2-3\n")

        picture = drawn(written.topology())

        assert "8 CPUs online, 8 cores, 2 sockets, 5 NUMA nodes, 4 L3 caches" in picture
        assert "NUMA nodes without CPUs: 250" in picture
        assert "(isolcpus): 2-3" in picture

    def test_cpus_of_no_node_are_drawn_as_such(self, tmp_path: Path) -> None:
        written = TELCO.write(tmp_path)
        (written.sys / "devices/system/node/node0/cpulist").write_text("1-7,17-23\n")

        assert "─ no NUMA node, L3 0 ─" in drawn(written.topology())

    def test_a_package_without_an_id_goes_by_its_number(self, tmp_path: Path) -> None:
        written = Machine(sockets=2).write(tmp_path)
        for cpu in (0, 1):
            folder = written.sys / f"devices/system/cpu/cpu{cpu}/topology"
            (folder / "physical_package_id").write_text("-1\n")

        assert "─ socket 1, NUMA node 1, L3 1 ─" in drawn(written.topology())

    def test_ascii_terminals_get_ascii(self) -> None:
        written = io.BytesIO()
        with io.TextIOWrapper(written, encoding="ascii") as out:
            drawing.show(drawing.Picture(TELCO.topology(), Painting()), out)
            out.flush()

            assert b"+- socket 0, NUMA node 0, L3 0 -" in written.getvalue()

    def test_every_pool_has_a_letter_and_siblings_its_small_one(self) -> None:
        topology = TELCO.topology()
        picture = drawn(topology, paint_pools(POOLS, topology))

        assert ids(picture, "A") == [0, 1, 16, 17]
        assert ids(picture, "B") == [2, 3, 4, 5]
        assert ids(picture, "b") == [18, 19, 20, 21]
        assert ids(picture, "c") == [26, 27, 28, 29]
        assert ids(picture, "D") == [6, 7, 22, 23]
        legend = [line.split() for line in picture.splitlines()[-7:]]
        assert legend == [
            ["A", "default", "0-1,16-17", "default"],
            ["B", "exclusive_caas", "2-5", "one", "owner", "each"],
            ["b", "exclusive_caas,", "siblings", "18-21", "kept", "idle"],
            ["C", "exclusive_dpdk", "10-13", "one", "owner", "each"],
            ["c", "exclusive_dpdk,", "siblings", "26-29", "granted", "along"],
            ["D", "shared_caas", "6-7,22-23", "shared"],
            ["none", "of", "these", "8-9,14-15,24-25,30-31"],
        ]


class TestNodeStatus:
    def test_containers_that_are_astray_are_listed(self) -> None:
        status = NodeStatus(
            NodePools(),
            (
                container("a/good/c", wanted="2-3", found="2-3"),
                container("a/astray/c", wanted="0-1", found="10-13"),
                container("a/dark/c", wanted="0-1", found="0-1", reason="no device ids yet"),
            ),
        )
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        rows = [line.split() for line in out.getvalue().splitlines()]
        assert "1 of 3 containers are where they belong.".split() in rows  # noqa: SIM905
        assert ["a/astray/c", "10-13", "0-1", "not", "moved", "yet"] in rows
        assert ["a/dark/c", "0-1", "0-1", "no", "device", "ids", "yet"] in rows
        assert ids(out.getvalue(), "B") == [10, 11, 12, 13]

    def test_a_sandbox_is_named_as_such_and_an_unknown_directory_is_not(self) -> None:
        unknown = container("uid/id", wanted="0-1", found="0-1", reason="its pod is not known")
        status = NodeStatus(
            NodePools(),
            (
                container("a/web", wanted="0-1", found="0-1"),
                container("a/web/c", wanted="2-3", found="2-3"),
                replace(unknown, placement=Placement.CONFINED),
            ),
        )
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        assert "a/web (sandbox)" in out.getvalue()
        assert "a/web/c (sandbox)" not in out.getvalue()
        assert "uid/id (sandbox)" not in out.getvalue()

    def test_a_resized_owner_is_listed_where_it_belongs(self) -> None:
        why = "it requests cpu 4 since a resize, and keeps CPUs 2-3 until the pod ends"
        owner = container("a/resized/c", wanted="2-3", found="2-3", reason=why)
        status = NodeStatus(NodePools(), (replace(owner, placement=Placement.POLICY),))
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        words = out.getvalue().split()
        assert "1 of 1 containers are where they belong." in " ".join(words)
        assert "a/resized/c" in words

    def test_a_resize_that_takes_cpus_is_told_in_a_line_and_its_cpus_are_marked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reasons, "time", SimpleNamespace(time=lambda: 1_795_356_003.5))
        changes = OwnChanges(CPUSet.of(2), CPUSet.parse("4-5"), notice_ends_unix_s=1_795_356_005.0)
        owner = replace(
            container("a/web/c", wanted="2-5", found="2-5", reason="it leaves CPUs"),
            placement=Placement.POLICY,
            exclusive=CPUSet.parse("2-5"),
            changes=changes,
        )
        begins = replace(owner, changes=replace(changes, notice_ends_unix_s=None))
        stay = CPUSet.parse("2-3")
        over = replace(
            owner,
            changes=replace(changes, notice_over=True),
            reason="",
            wanted=stay,
            exclusive=stay,
        )
        for shown, said in (
            (begins, "CPUs 4-5 leave when its notice ends."),
            (
                owner,
                "CPUs 4-5 leave in 2 s, at 2026-11-22T14:00:05Z, or when no thread needs them.",
            ),
            (over, "CPUs 4-5 are free when the container has left them."),
        ):
            out = io.StringIO()
            pools = NodePools.of(cpu_manager=CPUManager("dynamic", 2))
            status = NodeStatus(pools, (shown,))
            drawing.show(drawing.node_status(TELCO.topology(), status), out)

            words = " ".join(out.getvalue().split())
            assert f"a/web/c: a resize changes its CPUs from 2-5 to 2-3; {said}" in words
            assert "CPUs with an owner: 2-5." in words
            assert ids(out.getvalue(), "-") == [4, 5]
            assert ids(out.getvalue(), "A") == [2, 3]
            assert ("not moved yet" in words) == (shown is over)
            assert "it leaves CPUs" not in words

    def test_a_confined_container_is_where_it_belongs_and_counted_apart(self) -> None:
        confined, moved = (
            replace(
                container(name, wanted="0-1", found=found, reason="there is no pool exclusive_x"),
                placement=Placement.CONFINED,
            )
            for name, found in (("a/confined/c", "0-1"), ("a/moved/c", "2-3"))
        )
        for containers, verdict in (
            (
                (confined,),
                "1 of 1 containers are where they belong. Confined to the default pool: 1.",
            ),
            (
                (confined, moved),
                "1 of 2 containers are where they belong. Confined to the default pool: 2.",
            ),
        ):
            out = io.StringIO()
            status = NodeStatus(NodePools(), containers)
            drawing.show(drawing.node_status(TELCO.topology(), status), out)

            words = out.getvalue().split()
            assert verdict in " ".join(words)
            assert "a/confined/c" in words

    @pytest.mark.parametrize(("cpus", "shown"), [("2-3", "2-3"), ("", "none")])
    def test_the_cpus_of_system_pods_are_said(self, cpus: str, shown: str) -> None:
        system = SystemPods(("kube-system", "monitoring"), CPUSet.of(2, 3))
        pools = NodePools.of(cpu_manager=CPUManager("static", 1, system_pods=system))
        status = NodeStatus(pools, (), sets={DEFAULT: CPUSet.of(0), SYSTEM: CPUSet.parse(cpus)})
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        assert f"CPUs of system pods (kube-system, monitoring): {shown}.\n" in out.getvalue()

    def test_a_bubble_is_said_with_who_has_which_of_its_cpus(self) -> None:
        bubble = CPUSet.parse("2-5")
        containers = tuple(
            replace(
                container(f"a/web/{name}", wanted=cpus, found=cpus),
                exclusive=CPUSet.parse(cpus),
                bubble=InBubble(bubble, owns=name == "db"),
            )
            for name, cpus in (("db", "2-3"), ("logs", "4-5"))
        )
        pools = NodePools.of(cpu_manager=CPUManager("static", 1))
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), NodeStatus(pools, containers)), out)
        said = "Pod a/web has the bubble 2-5: db owns 2-3, logs shares 4-5."
        assert f"{said}\n" in out.getvalue()

    def test_nothing_is_listed_when_all_is_well(self) -> None:
        status = NodeStatus(NodePools(), (container("a/good/c", wanted="2-3", found="2-3"),))
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        assert out.getvalue().rstrip().endswith("1 of 1 containers are where they belong.")
        assert "draining" not in out.getvalue()

    @pytest.mark.parametrize("writer", Writer)
    def test_the_first_line_says_who_writes_the_containers_that_start_now(
        self, writer: Writer
    ) -> None:
        status = NodeStatus(NodePools(), (), enforcement=writer)
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        assert out.getvalue().startswith(f"Enforcement: {writer.value}\n")

    def test_what_drains_stands_beside_its_pool_or_for_itself(self) -> None:
        pools = NodePools.of(Pool.named("exclusive_a", "2-3"), Pool.named("default", "0-1"))
        status = NodeStatus(pools, (), draining={"exclusive_a": 1, "shared_gone": 250})
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), status), out)

        rows = [line.split() for line in out.getvalue().splitlines()]
        assert ["exclusive_a", "2-3", "2-3", "1"] in rows
        assert ["default", "0-1"] in rows
        assert ["shared_gone", "removed", "250"] in rows

    def test_openshifts_resource_stands_below_the_pools_with_the_cpus_of_its_pool(self) -> None:
        pools = NodePools.of(Pool.named("shared_b", "2-3"), mixed=MixedCPUs("shared_b"))
        for shown, row in (
            (pools, ["enable-shared-cpus", "2-3", "1"]),
            (replace(pools, mixed=None), ["enable-shared-cpus", "removed", "1"]),
        ):
            status = NodeStatus(shown, (), draining={"enable-shared-cpus": 1})
            out = io.StringIO()
            drawing.show(drawing.node_status(TELCO.topology(), status), out)
            assert row in [line.split() for line in out.getvalue().splitlines()]

    def test_what_the_kubelet_places_is_where_it_belongs(self) -> None:
        placed = replace(
            container("a/plain/c", wanted="", found="0-7"), placement=Placement.KUBELET
        )
        out = io.StringIO()
        drawing.show(drawing.node_status(TELCO.topology(), NodeStatus(NodePools(), (placed,))), out)
        assert out.getvalue().rstrip().endswith("1 of 1 containers are where they belong.")
        assert "draining" not in out.getvalue()


def container(name: str, *, wanted: str, found: str, reason: str = "") -> ContainerStatus:
    return ContainerStatus(name, Placement.POOLS, CPUSet.parse(wanted), found, reason, CPUSet())


class TestSVG:
    def test_a_picture_is_exported_as_wide_as_it_is_and_fetches_nothing(
        self, tmp_path: Path
    ) -> None:
        topology = TELCO.topology()
        picture = drawing.Picture(topology, paint_pools(POOLS, topology))

        drawing.export_svg(picture, tmp_path / "wide.svg", "telco")
        drawing.export_svg(
            drawing.Picture(Machine().topology(), Painting()), tmp_path / "narrow.svg", "one"
        )

        svg = (tmp_path / "wide.svg").read_text()
        assert "url(&quot;http" not in svg
        assert 'url("http' not in svg
        assert width(tmp_path / "wide.svg") > width(tmp_path / "narrow.svg")
        assert "exclusive_caas" in svg


def width(path: Path) -> float:
    return float(ET.parse(path).getroot().attrib["viewBox"].split()[2])
