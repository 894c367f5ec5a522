"""Whatever plugins, pods and the runtime do, in any order: no question is where it cannot be.

An event that cannot happen ends the role, so that no failure of a step is the property. At the end
plugins are there and answer, and each question is where the last of its pod leaves it: gone.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from cpupool.core.cpu_manager import CPUManager, Scope, TopologyHint, TopologyPolicy
from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_facts import AnswerPart
from cpupool.core.pools import NodePools, Pool
from cpupool.core.workloads import ContainerID, ContainerRef
from cpupool.manager.manager import Manager
from cpupool.policies.qrm.policy import QRM
from cpupool.policies.qrm.questions import PluginOptions
from cpupool.qrm.answer_import import AnswerImport
from cpupool.qrm.assembly import answers_file
from cpupool.qrm.plugin_client import PluginError
from cpupool.qrm.question_table import Event, QuestionTable, Row
from cpupool.qrm.resource_manager import PluginSettings, ResourceManager
from tests import builders
from tests.events import Heard
from tests.runtimes import reported
from tests.unit.manager.plugged import MACHINE, container, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

    from cpupool.core.plugin_facts import AnswerParts
    from cpupool.core.workloads import Pod

RESOURCES: Final = ("cpu", "memory")
MOST_PODS: Final = 4
STEPS: Final = 500


class Plugin:
    """A plugin that answers by chance, one question each time it is let.

    Attributes:
        has: what it believes that containers have.
    """

    complaint, refused, introduction = "", False, True

    def __init__(self, resource: str, dice: random.Random, post: Callable[..., None]) -> None:
        self.resource = resource
        self.socket = Path(f"/plugins/{resource}")
        self.options = PluginOptions(*(dice.random() < 0.6 for _ in range(3)))
        self.closed = False
        self.works = False
        self.has: dict[ContainerRef, AnswerParts] = {}
        self._dice, self._post = dice, post
        self._work: deque[Callable[[], None]] = deque()

    def ask(self, call: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        def work() -> None:
            found: Any
            try:
                found = call(self)
            except PluginError as error:
                found = error
            self._post(lambda: None if self.closed else done(found))

        self._work.append(work)

    def answer(self) -> None:
        """Answer a question, if there is one."""
        if self._work and not self.closed:
            self._work.popleft()()

    def hints(self, _question: object) -> tuple[TopologyHint, ...] | None:
        self._fail()
        node = TopologyHint(frozenset({0}), preferred=True)
        return (node,) if self.works else self._dice.choice([None, (), (node,)])

    def allocate(self, question: Any, _hint: object) -> AnswerParts:
        self._fail()
        self.has[question.container] = self._made()
        return self.has[question.container]

    def before_start(self, _question: object) -> None:
        self._fail()

    def allocations(self) -> Mapping[ContainerRef, AnswerParts]:
        self._fail()
        if not self.works and self.has and self._dice.random() < 0.5:
            self.has[self._dice.choice(list(self.has))] = self._made()
        forgotten = {ref for ref in self.has if not self.works and self._dice.random() < 0.2}
        return {ref: each for ref, each in self.has.items() if ref not in forgotten}

    def node_resources(self) -> Mapping[str, float]:
        self._fail()
        return {}

    def remove(self, uid: str) -> None:
        self._fail()
        self.has = {ref: each for ref, each in self.has.items() if ref.pod != uid}

    def _made(self) -> AnswerParts:
        if self.resource != "cpu":
            return {self.resource: AnswerPart()}
        return {
            "cpu": AnswerPart("CpusetCpus", self._dice.choice(["1-2", "3", "4-5", "", "8"]), 2.0)
        }

    def _fail(self) -> None:
        if not self.works and self._dice.random() < 0.3:
            refused = self._dice.random() < 0.5
            raise PluginError(self.resource, "has no room", "wait", refused=refused)


class Registry:
    """The plugins that are there, in the place of those on sockets."""

    expected = False

    def __init__(self) -> None:
        self.plugins: dict[str, Any] = {}

    @property
    def workers(self) -> list[Any]:
        return list(self.plugins.values())

    def look(self) -> None:
        """Find nothing: the test says what comes and goes."""


class Life:
    """An agent to which anything happens."""

    def __init__(self, seed: int, scope: Scope, folder: Path) -> None:
        folder.mkdir()
        self._dice = random.Random(seed)
        self.now_s = 0.0
        self._pods: dict[str, Pod] = {}
        self._ended: list[Pod] = []
        self._made = self._instances = 0
        self._seen: list[str] = []
        own = CPUManager(
            QRM, CPUSet.of(0), topology_policy=TopologyPolicy.RESTRICTED, topology_scope=scope
        )
        self.manager = Manager()
        self.manager.reconfigure(
            NodePools.of(Pool.named("default", "0-7"), cpu_manager=own), MACHINE.topology()
        )
        events = Heard()
        self.role = ResourceManager(
            self.manager,
            PluginSettings((folder,), of_node=True),
            answers_file(folder / "answers.json"),
            AnswerImport([folder / "none"], events),
            telemetry=builders.telemetry(events=events),
            changed=lambda: None,
            now_s=lambda: self.now_s,
        )
        self.registry = Registry()
        self.role._registry = cast("Any", self.registry)
        self.role.recall()
        self.manager.adopt(())
        self.manager.observe(pods=())

    def step(self) -> None:
        """Let something happen soon, and the role see it."""
        happens = (
            *(self._answers,) * 12,
            *(self._pods_change,) * 4,
            *(self._runtime,) * 2,
            *(self._nothing, self._passes, self._comes),
        )
        self._dice.choice(happens)()
        self.now_s += 0.1
        self.role.step()

    def end(self) -> None:
        """Let plugins work, and all pods end."""
        self._ended += self._pods.values()
        self._pods.clear()
        self._look()
        for identifier in self._seen:
            self.manager.forget_containers([ContainerID(identifier)])
        for plugin in self.registry.workers:
            plugin.works = True
        for _ in range(100):
            self.now_s += 5.0
            self._answers()
            self.role.step()

    def _nothing(self) -> None:
        """Let the role look without news."""

    def _answers(self) -> None:
        for plugin in self.registry.workers:
            plugin.answer()

    def _passes(self) -> None:
        self.now_s += self._dice.choice([1.0, 5.0, 400.0])

    def _comes(self) -> None:
        """Let a plugin go, and perhaps another one take its place."""
        resource, plugins = self._dice.choice(RESOURCES), self.registry.plugins
        before = plugins.pop(resource, None)
        if before:
            before.closed = True
            self.role._registered(resource, None)
        if before is None or self._dice.random() < 0.7:
            plugins[resource] = Plugin(resource, self._dice, self.role._post)
            self.role._registered(resource, plugins[resource])

    def _pods_change(self) -> None:
        names = [*self._pods]
        if len(names) < MOST_PODS and self._dice.random() < 0.5:
            self._starts()
        elif names:
            self._changes(self._dice.choice(names))
        self._look()

    def _starts(self) -> None:
        """Let a pod come, or one that has ended return."""
        if self._ended and self._dice.random() < 0.2:
            back = self._ended.pop()
            self._pods[back.name] = back
            return
        self._made += 1
        name, level = f"p{self._made}", self._dice.choice(["", "dedicated_cores"])
        mains = (container("main", cpu=2.0, memory=1.0), container("other", cpu=1.0))
        self._pods[name] = pod(name, *mains, level=level)

    def _changes(self, name: str) -> None:
        """Let a pod run, request more, or end."""
        has = self._pods[name]
        if not has.running and self._dice.random() < 0.4:
            self._pods[name] = replace(has, running=True)
        elif self._dice.random() < 0.4:
            more = tuple(
                replace(each, quantities={**each.quantities, "cpu": each.quantities["cpu"] + 1.0})
                for each in has.containers
            )
            self._pods[name] = replace(has, containers=more)
        elif self._dice.random() < 0.3:
            self._pods[name] = replace(has, ending=True)
        else:
            self._ended.append(self._pods.pop(name))

    def _look(self) -> None:
        self.manager.observe(
            pods=tuple(self._pods.values()),
            device_nodes={f"{name}-uid": {} for name in self._pods},
            idle=frozenset(f"{each.name}-uid" for each in self._ended),
        )

    def _runtime(self) -> None:
        """Let the runtime create an instance of a container, or end one."""
        if self._seen and self._dice.random() < 0.4:
            gone = self._seen.pop(self._dice.randrange(len(self._seen)))
            self.manager.forget_containers([ContainerID(gone)])
            return
        self._instances += 1
        self._seen.append(f"i{self._instances}")
        uid = f"p{self._dice.randrange(self._made - MOST_PODS, self._made) + 1}-uid"
        self.manager.observe_containers([reported(uid, identifier=self._seen[-1])])


def test_no_question_is_where_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves, move = Counter[Event](), QuestionTable.move

    def counted(table: QuestionTable, row: Row, event: Event) -> None:
        move(table, row, event)
        moves[event] += 1

    monkeypatch.setattr(QuestionTable, "move", counted)
    for seed, scope in product(range(4), Scope):
        life = Life(seed, scope, tmp_path / f"{seed}{scope.value}")
        for _ in range(STEPS):
            life.step()
        life.end()
        assert list(life.role._table) == []
        assert life.role._table.refusals == {}
    # These are not of a question, or of the moment in which an agent starts.
    others = {Event.END, Event.RETURN, Event.CONTESTED}
    assert moves.keys() == {*Event} - others
