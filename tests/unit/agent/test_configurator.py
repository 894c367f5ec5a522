"""Pool files as the kubelet mounts them, edited while the role runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cpupool.agent.configurator import Configurator
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import ConfigError
from cpupool.host.pool_files import PoolFiles
from cpupool.host.root import HostRoot
from cpupool.host.sysfs import Sysfs
from cpupool.loops.telemetry import Telemetry
from cpupool.manager.manager import Manager
from cpupool.telemetry.health import Health
from cpupool.telemetry.metrics import Metrics
from tests.builders import container, given, pod
from tests.events import Heard
from tests.loops import running
from tests.machines import MACHINES
from tests.mounts import Mount, Shown
from tests.policies import LowestCPUs
from tests.waiting import eventually

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

GOOD = "pools:\n  exclusive_a: {cpus: '4,6'}\n  default: {cpus: 0-1}\nnodeSelector: {node: a}\n"
GROWN = GOOD.replace("4,6", "2,4,6")
BAD = GOOD.replace("4,6", "6-5")
WORKER = "poolconfig-worker.yaml"


class World:
    """A machine with the role on it; what a restart of the agent leaves is in the folder."""

    def __init__(self, folder: Path) -> None:
        self.root = HostRoot.under(folder)
        self.machine = MACHINES["laptop_4c8t"].write(folder)
        self.mount = Mount(folder / "etc")
        self.labels_now: Mapping[str, str] | None = {"node": "a"}
        self.restart()

    def restart(self, shown: Shown | None = None) -> None:
        """Forget what a process forgets when it ends; then the API server shows this."""
        self.manager = Manager()
        self.metrics = Metrics()
        self.health = Health()
        self.heard = Heard()
        self.changes = 0
        self.role = Configurator(
            self.manager,
            PoolFiles(self.mount.folder, shown, last=self.root.last_config_map),
            last_good=self.root.last_good_pools,
            labels=self,
            topology=Sysfs.at(self.root.sysfs),
            telemetry=Telemetry(self.heard, self.metrics, self.health),
            changed=self._changed,
        )

    def labels(self) -> Mapping[str, str] | None:
        return self.labels_now

    def running(self) -> AbstractContextManager[threading.Event]:
        return running(self.role.run, wake=self.role.wake)

    def pools(self) -> dict[str, str]:
        return {pool.name: str(pool.cpus) for pool in self.manager.pools()}

    def await_pools(self, **expected: str) -> None:
        eventually(lambda: self.pools() == expected, lambda: f"{expected}, but {self.pools()}")

    def valid(self) -> bool:
        return b"cpupool_config_valid 1.0" in self.metrics.render()[1]

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.heard.nodes]

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.mount.show(worker=GOOD)
    return made


class TestEdits:
    def test_each_edit_of_the_mounted_files_is_taken_at_once(self, world: World) -> None:
        with world.running():
            world.await_pools(exclusive_a="4,6", default="0-1")
            for _ in range(3):
                world.mount.show(worker=GROWN)
                world.await_pools(exclusive_a="2,4,6", default="0-1")
                world.mount.show(worker=GOOD)
                world.await_pools(exclusive_a="4,6", default="0-1")
        assert world.changes == 7
        assert world.valid()

    def test_a_good_edit_is_reported_once_with_what_it_changes(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        caplog.set_level("INFO")
        world.mount.show(
            worker="pools:\n  exclusive_a: {cpus: '6'}\n  shared_b: {cpus: '2'}\n"
            "nodeSelector: {node: a}\n"
        )
        for _ in range(2):
            world.role.look()

        told = f"{WORKER}: added shared_b; removed default; resized exclusive_a."
        assert world.heard.nodes[1:] == [("CPUPoolConfigApplied", told)]
        assert caplog.text.count("pool configuration applied") == 1

    def test_an_edit_of_the_cpu_manager_is_reported_with_what_it_changes(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        caplog.set_level("INFO")
        world.mount.show(worker=GOOD + "cpuManager: {policy: static, reserved: 1}\n")
        world.role.look()
        world.mount.show(
            worker=GOOD.replace("0-1", "0-3") + "cpuManager:\n  policy: static\n  reserved: 2-2\n"
            "  options: {align-by-socket: 1, strict-cpu-reservation: 1}\n  onMisfit: share\n"
        )
        world.role.look()
        world.mount.show(worker=GOOD)
        world.role.look()

        on, edited, off = (message for _, message in world.heard.nodes[1:])
        assert on == (
            f"{WORKER}: changed cpuManager.policy from none to static, cpuManager.reserved from"
            " none to 1 CPU."
        )
        assert edited == (
            f"{WORKER}: resized default; changed cpuManager.reserved from 1 CPU to CPUs 2,"
            " cpuManager.options from none to align-by-socket and strict-cpu-reservation,"
            " cpuManager.onMisfit from hold to share."
        )
        assert "changed cpuManager.policy from static to none, cpuManager.reserved" in off
        assert "changed=" in caplog.text

    @pytest.mark.parametrize(
        ("manager", "place", "what"),
        [
            (
                "cpuManager: {policy: static}",
                "5:1: cpuManager.reserved",
                "needs a reserved CPU",
            ),
            (
                "cpuManager: {policy: static, reserved: 2}",
                "5:40: cpuManager.reserved",
                "2 of the 2 CPUs of the default pool are reserved",
            ),
            (
                "cpuManager: {policy: static, reserved: 1, options: {full-pcpus-only: yes}}",
                "5:70: cpuManager.options.full-pcpus-only",
                "'yes' is not a truth value",
            ),
        ],
    )
    def test_a_bad_edit_of_the_cpu_manager_changes_nothing(
        self, world: World, manager: str, place: str, what: str
    ) -> None:
        world.role.look()
        before = world.manager.pools()
        world.mount.show(worker=f"{GOOD}{manager}\n")
        world.role.look()

        assert world.manager.pools() == before
        assert world.heard.nodes[-1][1].startswith(f"{WORKER}:{place}: ")
        assert what in world.heard.nodes[-1][1]

    def test_what_only_the_policy_refuses_is_reported_with_its_place(self, world: World) -> None:
        world.role.look()
        before = world.manager.pools()
        world.mount.show(
            worker="pools: {default: {cpus: '0-2'}}\nnodeSelector: {node: a}\n"
            "cpuManager: {policy: static, reserved: 1, options: {full-pcpus-only: true}}\n"
        )
        world.role.look()

        assert world.manager.pools() == before
        message = world.heard.nodes[-1][1]
        assert message.startswith(f"{WORKER}:3:70: cpuManager.options.full-pcpus-only: the default")

    def test_what_is_wrong_with_and_without_the_machine_is_reported_together(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.mount.show(
            worker="pools: {shared_b: {cpus: '2,99', cpu: 3}}\nnodeSelector: {node: a}\n"
        )

        world.role.look()

        assert "unknown key" in caplog.text
        assert "this machine has no CPUs 99" in caplog.text

    def test_a_policy_that_is_not_installed_is_refused_at_its_key(self, world: World) -> None:
        world.role.look()
        world.mount.show(worker=GOOD + "cpuManager:\n  policy: nowhere\n")
        world.role.look()
        told = f"{WORKER}:6:11: cpuManager.policy: unknown value 'nowhere'; use none or static"
        assert world.heard.nodes[-1][1].startswith(told)
        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}

    def test_a_policy_that_is_not_installed_stops_no_other_node(self, world: World) -> None:
        other = "nodeSelector: {node: b}\ncpuManager: {policy: nowhere}\n"
        world.mount.show(worker=GOOD, other=other)
        world.role.look()
        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}

    def test_what_is_as_it_was_costs_reading_it_only(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.role.look()
        monkeypatch.setattr(Manager, "reconfigure", pytest.fail)
        world.role.look()

    def test_the_files_of_other_nodes_change_nothing_here(self, world: World) -> None:
        world.role.look()
        world.heard.nodes.clear()
        world.mount.show(worker=GOOD, other=GROWN.replace("node: a", "node: b"))
        world.role.look()

        assert world.changes == 1
        assert not world.heard.nodes

    def test_devices_that_pods_keep_are_named(self, world: World) -> None:
        world.role.look()
        owner = pod("owner", container(exclusive_a=2))
        world.manager.observe(pods=[owner])
        world.manager.accept(given(owner, exclusive_a="4,6"))
        world.mount.show(worker=GOOD.replace("4,6", "6"))
        world.role.look()

        assert world.heard.nodes[-1][1].endswith("resized exclusive_a; draining exclusive_a (1).")

    def test_a_bad_edit_changes_nothing_and_is_reported_exactly_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        world.heard.nodes.clear()
        world.mount.show(worker=BAD + "nonsense: 1\n")
        for _ in range(3):
            world.role.look()

        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
        assert not world.valid()
        assert caplog.text.count(f"{WORKER}:2:23: pools.exclusive_a.cpus:") == 1
        assert caplog.text.count(f"{WORKER}:5:1: nonsense: unknown key") == 1
        ((reason, message),) = world.heard.nodes
        assert reason == "CPUPoolConfigInvalid"
        assert message.startswith(f"{WORKER}:2:23: pools.exclusive_a.cpus:")
        assert "(and 1 more)" in message
        assert "the last good pools stay; `cpupool validate`" in message
        assert world.health.ready().ok

    def test_pools_that_the_machine_cannot_have_are_refused(self, world: World) -> None:
        world.role.look()
        world.mount.show(worker=GOOD.replace("4,6", "4,99"))
        world.role.look()

        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
        assert f"{WORKER}:2:23: " in world.heard.nodes[-1][1]
        assert "this machine has no CPUs 99" in world.heard.nodes[-1][1]

    def test_a_correction_is_reported_even_where_it_brings_back_the_old_text(
        self, world: World
    ) -> None:
        world.role.look()
        for text in (BAD, GOOD):
            world.mount.show(worker=text)
            world.role.look()

        assert world.valid()
        assert world.reasons()[1:] == ["CPUPoolConfigInvalid", "CPUPoolConfigApplied"]
        assert world.heard.nodes[-1][1] == f"{WORKER}: the pools are as they were."

    def test_two_files_for_one_node_are_a_bad_edit(self, world: World) -> None:
        world.role.look()
        world.mount.show(worker=GOOD, other=GROWN)
        world.role.look()

        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
        assert "both match this node" in world.heard.nodes[-1][1]

    def test_what_was_refused_is_tried_again_when_the_machine_changes(self, world: World) -> None:
        present = world.root.sysfs / "devices/system/cpu/present"
        whole = present.read_text()
        world.machine.switch_off(CPUSet.parse("6-7"))
        present.write_text("0-5\n")
        for _ in range(2):
            world.role.look()
        assert not world.valid()

        present.write_text(whole)
        world.machine.switch_on(CPUSet.parse("6-7"))
        world.role.look()
        assert world.valid()
        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}

    def test_the_problems_of_all_files_are_reported_together(self, world: World) -> None:
        world.mount.show(
            **{
                name: f"pools: {{default: {{cpus: '{cpus}'}}}}\nnodeSelector: {{n: {name}}}\n"
                for name, cpus in {"a": "5-2", "b": "0-1", "c": "x"}.items()
            }
        )
        with pytest.raises(ConfigError) as raised:
            world.role.load()

        told = [str(problem).split(":")[0] for problem in raised.value.problems]
        assert told == ["poolconfig-a.yaml", "poolconfig-c.yaml"]


class TestChoice:
    def test_a_label_that_changes_chooses_another_file(self, world: World) -> None:
        world.mount.show(worker=GOOD, other=GROWN.replace("node: a", "node: b"))
        with world.running():
            world.await_pools(exclusive_a="4,6", default="0-1")
            world.labels_now = {"node": "b"}
            world.role.wake()
            world.await_pools(exclusive_a="2,4,6", default="0-1")

    def test_nothing_is_chosen_before_the_labels_are_known(self, world: World) -> None:
        world.labels_now = None
        world.role.look()
        assert not world.pools()
        assert "labels: failing: this node's labels are not known" in world.health.ready().lines[0]

        world.labels_now = {"node": "a"}
        world.role.look()
        assert world.pools()
        assert world.health.ready().ok

    def test_a_node_without_a_file_has_no_pools_until_one_appears(self, world: World) -> None:
        world.labels_now = {}
        with world.running():
            eventually(world.valid, "a look")
            assert not world.pools()
            world.mount.show(worker=GOOD, mine="pools: {shared_x: {cpus: 2}}")
            world.await_pools(shared_x="2")

    def test_the_pools_go_with_their_file_and_pods_keep_their_cpus(self, world: World) -> None:
        world.role.look()
        owner = pod("owner", container(exclusive_a=1))
        world.manager.observe(pods=[owner])
        world.manager.accept(given(owner, exclusive_a="4"))
        world.mount.show()
        world.role.look()

        assert not world.pools()
        assert [pool.name for pool in world.manager.advertised()] == ["exclusive_a"]
        told = "removed default, exclusive_a; draining exclusive_a (1)."
        assert world.heard.nodes[-1][1] == f"no pool file matches this node: {told}"
        world.mount.show(worker=BAD)
        world.restart()
        world.role.look()
        assert not world.pools()

    def test_a_folder_that_vanishes_takes_no_pool_away(self, world: World) -> None:
        world.role.look()
        hidden = world.mount.folder.rename(world.mount.folder.with_name("hidden"))
        for _ in range(2):
            world.role.look()
        assert world.pools()
        assert not world.valid()
        assert world.reasons()[1:] == ["CPUPoolConfigInvalid"]

        hidden.rename(world.mount.folder)
        world.role.look()
        assert world.valid()

    def test_a_bad_edit_is_reported_again_after_another_fault(self, world: World) -> None:
        world.role.look()
        world.mount.show(worker=BAD)
        for _ in range(2):
            world.role.look()
        hidden = world.mount.folder.rename(world.mount.folder.with_name("hidden"))
        world.role.look()
        hidden.rename(world.mount.folder)
        world.role.look()

        problems = [message.partition(": ")[0] for _, message in world.heard.nodes[1:]]
        edit = f"{WORKER}:2:23"
        assert problems == [edit, str(world.mount.folder), edit]


class TestRestarts:
    def test_a_restart_does_not_report_again(self, world: World) -> None:
        world.role.look()
        world.restart()
        world.role.look()

        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
        assert not world.heard.nodes

    def test_after_a_restart_with_a_bad_edit_the_last_good_pools_return(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        world.mount.show(worker=BAD)
        world.restart()
        world.role.look()

        assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
        assert not world.valid()
        assert world.reasons() == ["CPUPoolConfigInvalid"]
        assert world.changes == 1
        assert f"last good pools in force file={world.root.last_good_pools}" in caplog.text

    def test_the_log_has_the_problems_before_what_follows_from_them(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        world.mount.show(worker=BAD)
        world.restart()
        caplog.clear()
        world.role.look()

        found = [re.split(r" \w+=", each.getMessage())[0] for each in caplog.records]
        assert found == ["pool file", "last good pools in force", "pool configuration refused"]

    def test_last_good_pools_stay_where_their_policy_is_gone_with_its_package(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cpupool.agent.configurator.find_policy", lambda _name: LowestCPUs)
        world.mount.show(worker=GOOD + "cpuManager: {policy: lowest}\n")
        world.role.look()
        assert world.valid()
        monkeypatch.undo()
        for _ in range(2):
            world.restart()
            world.role.look()
            assert world.pools() == {"exclusive_a": "4,6", "default": "0-1"}
            assert not world.valid()
            assert world.reasons() == ["CPUPoolConfigInvalid"]
            assert "the last good pools stay" in world.heard.nodes[0][1]

    def test_a_first_start_with_a_bad_file_has_no_pools_until_it_is_corrected(
        self, world: World
    ) -> None:
        world.mount.show(worker=BAD)
        with world.running():
            eventually(world.reasons, "an event")
            assert not world.pools()
            assert "there are no pools" in world.heard.nodes[0][1]
            world.mount.show(worker=GOOD)
            world.await_pools(exclusive_a="4,6", default="0-1")

    def test_last_good_pools_that_fit_no_longer_are_reported_and_not_used(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.mount.show(worker=BAD)
        world.root.state.mkdir(parents=True)
        world.root.last_good_pools.write_text(GOOD.replace("4,6", "99"))
        world.role.look()
        assert not world.pools()
        assert "last good pools cannot be used" in caplog.text

    @pytest.mark.parametrize("text", ["\0", GOOD + "#" * 2**16])
    def test_last_good_pools_that_are_damaged_are_set_aside(self, world: World, text: str) -> None:
        world.mount.show(worker=BAD)
        (last := world.root.last_good_pools).parent.mkdir(parents=True)
        last.write_text(text)
        world.role.look()
        assert world.reasons()[0] == "RecordSetAside"
        assert last.with_suffix(".yaml.corrupt").exists()

    def test_a_machine_that_cannot_be_read_is_reported_once_however_often_it_is_tried(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.role.look()
        present = world.root.sysfs / "devices/system/cpu/present"
        whole = present.read_text()
        present.write_text("no list\n")
        world.restart()
        for _ in range(3):
            world.role.look()
        assert not world.pools()
        assert world.reasons() == ["CPUPoolConfigInvalid"]
        assert caplog.text.count("last good pools cannot be used") == 1
        present.write_text(whole)
        world.role.look()
        assert world.pools()
        assert world.valid()

    def test_a_disk_that_takes_nothing_costs_a_warning_only(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.root.state.parent.mkdir(parents=True)
        world.root.state.touch()
        world.role.look()

        assert world.pools()
        assert world.valid()
        assert caplog.text.count("last good pools not kept") == 1


class TestConfigMap:
    def test_an_edit_is_in_force_whatever_the_folder_shows(self, world: World) -> None:
        shown = Shown(worker=GOOD)
        world.restart(shown)
        with world.running():
            world.await_pools(exclusive_a="4,6", default="0-1")
            shown.show(worker=GROWN)
            world.role.wake()
            world.await_pools(exclusive_a="2,4,6", default="0-1")
            world.mount.show(worker=GOOD, other=GOOD.replace("node: a", "node: b"))
        world.role.look()
        assert world.pools() == {"exclusive_a": "2,4,6", "default": "0-1"}

    def test_a_restart_takes_no_edit_back(self, world: World) -> None:
        world.restart(Shown(worker=GROWN))
        world.role.look()
        world.restart(Shown())
        world.role.look()

        assert world.pools() == {"exclusive_a": "2,4,6", "default": "0-1"}
        assert not world.heard.nodes

    def test_a_bad_edit_leaves_the_last_good_pools_over_a_restart(self, world: World) -> None:
        shown = Shown(worker=GROWN)
        world.restart(shown)
        world.role.look()
        shown.show(worker=BAD)
        world.role.look()
        world.restart(Shown())
        world.role.look()

        assert world.pools() == {"exclusive_a": "2,4,6", "default": "0-1"}
        assert not world.valid()
