"""Any answers, in any order: no set is empty, no CPU has two owners, and nothing fails.

A third of the answers at least can be accepted, and each rule is broken: the counts are checked.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpu_manager import TopologyHint
from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.plugin_facts import AnswerPart, PluginFacts
from cpupool.core.properties import OCIProperty
from cpupool.policies.view import DEFAULT
from cpupool.qrm import answer_record
from cpupool.qrm.answer_book import AnswerBook
from cpupool.qrm.bad_answers import Rule
from cpupool.qrm.question_table import QuestionTable
from tests.unit.manager.plugged import MACHINE, manager, pod, pools, ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpupool.manager.manager import Manager
    from cpupool.qrm.bad_answers import Broken

ANSWERS: Final = 10_000
PODS: Final = [
    pod(f"p{n}", level="dedicated_cores" if n % 2 else "", limit_milli=4000) for n in range(6)
]
NAMES: Final = Names()


class Fuzz:
    """A node that gets answers by chance.

    Attributes:
        broken: rule → how many answers have broken it.
        made: how many answers there were.
        accepted: how many of them count.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.broken: Counter[Rule] = Counter()
        self.made = self.accepted = 0
        self.manager: Manager = manager(*PODS)
        self.table = QuestionTable(lambda: 0.0)
        self.book = AnswerBook(self.table, NAMES, self._note, v2=False)

    def _note(self, _ref: object, _resource: str, broken: Broken) -> None:
        self.broken[broken.rule] += 1

    def step(self) -> None:
        """Let the node or an answer change."""
        self._random.choice((self._answer,) * 30 + (self._machine, self._forget, self._policy))()
        self.manager.observe(plugins=PluginFacts(frozenset({"cpu", "x"}), self.table.record))

    def _answer(self) -> None:
        answered = {}
        for of in self._random.sample(PODS, 6):
            resource = self._random.choice(("cpu",) * 11 + ("x",))
            made = self._made(PODS.index(of) + 1)
            answered[ref(of.name), resource] = self.book.asked_for(of, 2.0, {resource: made})
        self.book.take(self.manager.snapshot(), answered)
        for (of_container, resource), given in answered.items():
            self.made += 1
            kept = self.table.answers(of_container).get(resource)
            assert kept is None or kept == kept, "what is kept equals itself"  # noqa: PLR0124
            self.accepted += kept is not None and kept.parts == given.parts and not kept.refused

    def _made(self, usual: int) -> AnswerPart:
        """Make an answer: a pod has a usual CPU, and sometimes more or something bad."""
        pick: Callable[..., Any] = self._random.choice
        more = self._random.randrange(8) if self._random.random() < 0.2 else usual
        answer = AnswerPart("CpusetCpus", str(CPUSet.of(usual, more)), 2.0)
        if self._random.random() < 0.65:
            return answer
        return replace(
            answer,
            **pick(
                (
                    {"value": pick(("0-3", "3-9", "", "7-", "\0", "1,,2", "99999", "0-7", "0"))},
                    {"oci_property": pick((*(each.value for each in OCIProperty), "Memory", ""))},
                    {
                        "quantity": pick((float("nan"), -1.0, float("inf"), -0.0, 2.0**54)),
                        "scalar": pick((True, False)),
                    },
                    {"env": pick(({"A=": ""}, {"CPU_POOLS": "1"}, {"EXCLUSIVE_CPUS": "1"}))},
                    {
                        "annotations": pick(
                            ({NAMES.chosen: "1"}, {"/": ""}, {NAMES.exclusive: "true"})
                        )
                    },
                    {"by_node": pick(({0: -1}, {-1: 0}, {1024: 1}))},
                    {"hints": (TopologyHint(frozenset({pick((-1, 1 << 60))}), preferred=True),)},
                    {"env": {"A": "\ud800\udc00"}},
                    {"oci_property": "CpuShares", "value": pick(("512", "0"))},
                    {"oci_property": "CpuQuota", "value": pick(("100000", "900000", "-1"))},
                    {"oci_property": "CpuPeriod", "value": "100000"},
                    {"oci_property": "MemorySwapLimitInBytes", "value": str(1 << 30)},
                    {"oci_property": "Unified", "value": pick(("io.weight=10", "cpu.max=1"))},
                )
            ),
        )

    def _machine(self) -> None:
        off = self._random.choice((*("",) * 8, "3", "0", "1-6", "5,7"))
        self.manager.update_topology(MACHINE.without(off).topology())

    def _forget(self) -> None:
        ended = self._random.choice(PODS)
        self.table.follow({each.cgroup_uid for each in PODS if each is not ended}, ())

    def _policy(self) -> None:
        policy = self._random.choice((*("qrm",) * 7, "static"))
        self.manager.reconfigure(pools(policy), self.manager.snapshot().facts.topology)

    def record(self) -> None:
        """Check that a record holds what is kept, and that another write does nothing."""
        record = self.table.record
        written = answer_record.encode(record)
        assert answer_record.parse(written) == record
        assert answer_record.encode(answer_record.parse(written)) == written


def check(node: Manager) -> None:
    """Check what must hold whatever plugins answer."""
    facts, resolution = node.snapshot()
    view = resolution.view
    assert view.extents[DEFAULT]
    owners: dict[str, CPUSet] = {}
    for uid, grant in resolution.grants.of_pods:
        owners[uid] = owners.get(uid, CPUSet()) | grant.cpus
    for uid, cpus in owners.items():
        assert cpus.isdisjoint(CPUSet.union(each for other, each in owners.items() if other != uid))
        assert cpus.isdisjoint(view.extents[DEFAULT])
    for ref_, cpus in facts.plugins.shared.items():
        assert cpus, ref_
    for wanted in facts.plugins.properties.values():
        assert not wanted.unified
        assert wanted.swap_bytes is None
        assert wanted.bandwidth is None or (wanted.bandwidth.cpus or 0) <= 4


def test_no_answer_harms_the_node() -> None:
    fuzz = Fuzz(20)
    while fuzz.made < ANSWERS:
        fuzz.step()
        check(fuzz.manager)
        fuzz.record()
    assert fuzz.accepted > ANSWERS / 3, fuzz.accepted
    assert fuzz.broken.keys() == set(Rule), fuzz.broken
