"""Which answers the book keeps, and which of them count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cpupool.core.cpuset import CPUSet
from cpupool.core.names import Names
from cpupool.core.plugin_facts import AnswerPart, PluginFacts, RecordedAnswer
from cpupool.qrm.answer_book import AnswerBook
from cpupool.qrm.question_table import QuestionTable
from tests.unit.manager.plugged import MACHINE, cpus, manager, pod, ref

if TYPE_CHECKING:
    from cpupool.qrm.bad_answers import Broken

A, B = pod("a", level="dedicated_cores"), pod("b")


@dataclass
class Node:
    """A node whose facts follow the book."""

    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = manager(A, B)
        self.table = QuestionTable(lambda: 0.0)
        self.book = AnswerBook(self.table, Names(), self._note)

    def _note(self, _ref: object, resource: str, broken: Broken) -> None:
        self.broken.append(f"{resource}: {broken.rule.value}")

    def take(self, **given: RecordedAnswer) -> None:
        """Take answers for pods, and make them facts."""
        answered = {(ref(name), "cpu"): each for name, each in given.items()}
        self.book.take(self.manager.snapshot(), answered)
        self.publish()

    def publish(self) -> None:
        self.manager.observe(plugins=PluginFacts(frozenset({"cpu"}), self.table.record))

    def has(self, name: str) -> str:
        return str(self.table.answers(ref(name))["cpu"].cpus)


def own(text: str) -> RecordedAnswer:
    return cpus(text, exclusive=True)


def test_an_answer_that_keeps_the_rules_counts() -> None:
    node = Node()
    node.take(a=own("2-3"), b=cpus("1,4-5"))
    assert (node.has("a"), node.has("b")) == ("2-3", "1,4-5")
    assert node.broken == []


def test_a_bad_answer_leaves_the_last_good_one_and_is_counted_once() -> None:
    node = Node()
    node.take(a=own("2-3"))
    node.take(a=own("8-9"))
    assert node.has("a") == "2-3"
    assert node.broken == ["cpu: outside"]


def test_an_answer_that_stays_bad_is_told_once() -> None:
    node = Node()
    node.take(a=own("2-3"))
    for _ in range(3):
        node.take(a=own("8-9"))
    assert node.broken == ["cpu: outside"]
    node.take(a=own("3-4"))
    node.take(a=own("8-9"))
    assert node.broken == ["cpu: outside"] * 2
    node.table.follow({B.cgroup_uid}, ())
    node.take(a=own("8-9"))
    assert node.broken == ["cpu: outside"] * 3


def test_without_a_good_one_the_bad_one_is_kept_and_does_not_count() -> None:
    node = Node()
    node.take(a=own("8-9"))
    node.take(a=own("8-9"))
    assert node.has("a") == ""
    assert node.table.answers(ref("a"))["cpu"].refused
    assert node.broken == ["cpu: outside"]
    node.take(a=own("9"))
    assert node.broken == ["cpu: outside"] * 2


def test_it_counts_once_the_node_allows_it() -> None:
    node = Node()
    node.manager.update_topology(MACHINE.without("3").topology())
    node.take(a=own("2-3"))
    assert node.has("a") == ""
    node.book.judge_again(node.manager.snapshot())
    assert node.has("a") == ""
    node.manager.update_topology(MACHINE.topology())
    node.book.judge_again(node.manager.snapshot())
    assert node.has("a") == "2-3"
    assert not node.table.answers(ref("a"))["cpu"].refused


def test_cpus_that_one_answer_leaves_another_gets_at_once() -> None:
    node = Node()
    node.take(a=own("2-5"))
    node.take(b=own("4-5"), a=own("2-3"))
    assert (node.has("a"), node.has("b")) == ("2-3", "4-5")
    assert node.broken == []


def test_two_answers_swap_their_cpus() -> None:
    node = Node()
    node.take(a=own("2-3"), b=own("4-5"))
    node.take(a=own("4-5"), b=own("2-3"))
    assert (node.has("a"), node.has("b")) == ("4-5", "2-3")
    assert node.broken == []
    owned = node.manager.snapshot().resolution.grants.chosen
    assert {uid: str(grant.cpus) for uid, grant in owned.items()} == {
        "a-uid": "4-5",
        "b-uid": "2-3",
    }


def test_a_swap_of_which_one_part_is_bad_is_none() -> None:
    node = Node()
    node.take(a=own("2-3"), b=own("4-5"))
    node.take(a=own("4-5"), b=own("2-3,8"))
    assert (node.has("a"), node.has("b")) == ("2-3", "4-5")
    assert sorted(node.broken) == ["cpu: outside", "cpu: owned"]


def test_a_swap_brings_no_container_two_answers_for_one_property() -> None:
    node = Node()
    node.take(a=own("2-3"), b=own("4-5"))
    swapped = {
        (ref("a"), "cpu"): own("4-5"),
        (ref("a"), "x"): own("4-5"),
        (ref("b"), "cpu"): own("2-3"),
    }
    node.book.take(node.manager.snapshot(), swapped)
    node.publish()
    assert (node.has("a"), node.has("b")) == ("2-3", "4-5")


def test_of_two_new_answers_with_one_cpu_one_counts() -> None:
    node = Node()
    node.take(a=own("2-3"), b=own("3-4"))
    assert sorted((node.has("a"), node.has("b"))) in [["", "2-3"], ["", "3-4"]]
    assert node.broken == ["cpu: owned"]


def test_what_is_forgotten_is_free() -> None:
    node = Node()
    node.take(a=own("2-3"))
    node.table.follow({B.cgroup_uid}, ())
    node.publish()
    assert node.table.record == {}
    node.take(b=own("2-3"))
    assert node.has("b") == "2-3"


def test_a_record_counts_as_it_is() -> None:
    node = Node()
    node.take(a=own("2-3"), b=cpus("8"))
    following = Node()
    following.book.load(node.table.record)
    assert following.table.record == node.table.record
    following.take(b=own("2"))
    assert following.broken == ["cpu: owned"]


def test_the_class_or_a_mark_makes_an_answer_exclusive() -> None:
    book = Node().book
    plain = {"cpu": AnswerPart("CpusetCpus", "2")}
    marked = {"cpu": replace(plain["cpu"], annotations={Names().exclusive: "true"})}
    assert book.asked_for(A, 1.0, plain).exclusive
    assert not book.asked_for(B, 1.0, plain).exclusive
    assert book.asked_for(B, 1.0, marked).exclusive


def test_a_list_changes_the_cpus_and_nothing_that_only_a_creation_sets() -> None:
    book = Node().book
    has = replace(own("2-3"), parts={"cpu": AnswerPart("CpusetCpus", "2-3", env={"A": "1"})})
    found = {"cpu": AnswerPart("CpusetCpus", "4"), "more": AnswerPart(annotations={"b": "2"})}

    # The pod's author has taken its class away.
    listed = book.listed(B, 9.0, found, has)

    assert listed.exclusive
    assert listed.quantity == has.quantity
    assert listed.cpus == CPUSet.of(4)
    assert dict(listed.parts["cpu"].env) == {"A": "1"}
    assert dict(listed.parts["more"].annotations) == {"b": "2"}
    assert book.listed(B, 9.0, found, None) == RecordedAnswer(9.0, found)


def test_cpus_that_a_container_has_kept_for_itself_stay_its_own_after_the_next_answer() -> None:
    """Its pod's author may have changed the class since, which the lost answer knew."""
    node = Node()
    kept = replace(own("2-3"), kept=True)
    answers = cpus("4-5").parts
    listed = node.book.listed(B, 2.0, answers, kept)
    asked = node.book.asked_for(B, 2.0, answers, has=kept)
    assert listed == asked == RecordedAnswer(2.0, answers, exclusive=True)
    assert not node.book.asked_for(B, 2.0, answers, has=own("2-3")).exclusive


def test_an_answer_that_no_node_mends_is_not_kept_and_judged_no_more() -> None:
    node = Node()
    bad = {"cpu": replace(cpus("2-3").parts["cpu"], quantity=float("nan"))}
    node.take(a=RecordedAnswer(2.0, bad, exclusive=True))
    given = node.table.answers(ref("a"))["cpu"]
    assert (given.parts, given.refused != "") == ({}, True)
    before = node.table.changes
    node.book.judge_again(node.manager.snapshot())
    node.take(a=RecordedAnswer(2.0, bad, exclusive=True))
    assert (node.table.changes, node.broken) == (before, ["cpu: quantity"])
