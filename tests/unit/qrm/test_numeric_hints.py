from __future__ import annotations

import pytest

from cpupool.core.cpu_manager import TopologyHint
from cpupool.qrm import numeric_hints
from cpupool.qrm.numeric_hints import MergedEach, Offer, merge_each

ALIGN = ("cpu", "memory")
ANY = TopologyHint(None, preferred=True)
NONE_LIKED = TopologyHint(None, preferred=False)


def good(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=True)


def poor(*nodes: int) -> TopologyHint:
    return TopologyHint(frozenset(nodes), preferred=False)


def merged(*offers: Offer) -> dict[str, TopologyHint] | None:
    answer = merge_each(offers, ALIGN)
    assert answer.proven
    return None if answer.hints is None else dict(answer.hints)


def test_each_resource_has_nodes_of_its_own_and_aligned_resources_have_the_same() -> None:
    cpu, memory, nic = (
        [good(0), good(0, 1)],
        [good(0, 1)],
        [poor(0), good(1)],
    )
    assert merged(("cpu", cpu), ("memory", memory), ("nic", nic)) == {
        "cpu": good(0, 1),
        "memory": good(0, 1),
        "nic": good(1),
    }


def test_a_resource_without_a_wish_goes_with_everything() -> None:
    assert merged(("cpu", None), ("memory", [good(1)])) == {"cpu": ANY, "memory": good(1)}
    assert merged(("nic", None)) == {"nic": ANY}
    assert merged() == {}


@pytest.mark.parametrize(
    "offers",
    [
        pytest.param([("cpu", [good(0)]), ("memory", [])], id="no nodes can serve a resource"),
        pytest.param([("cpu", [good(0)]), ("memory", [good(1)])], id="aligned, but elsewhere"),
        pytest.param([("cpu", [poor(0)]), ("memory", [poor(0)])], id="no aligned one prefers it"),
        pytest.param([("cpu", [poor(0)])], id="the only aligned one does not prefer it"),
        pytest.param([("cpu", [good(0)]), ("nic", [good(1)])], id="no set has the other"),
        pytest.param([("cpu", None), ("memory", [NONE_LIKED])], id="no nodes, and not preferred"),
    ],
)
def test_a_container_is_refused_without_a_lawful_combination(offers: list[Offer]) -> None:
    assert merged(*offers) is None


def test_more_preferred_hints_win_and_then_narrower_sets() -> None:
    wide, narrow = [good(0, 1)], [poor(0), good(1), good(0, 1)]
    assert merged(("cpu", wide), ("nic", narrow)) == {"cpu": good(0, 1), "nic": good(1)}
    either = [good(0, 1), good(0)]
    assert merged(("cpu", either), ("memory", either)) == {"cpu": good(0), "memory": good(0)}


def test_a_search_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric_hints, "_MOST_STEPS", 2)
    hints = [good(0), good(1)]
    assert merge_each([("cpu", hints), ("nic", hints)], ALIGN) == MergedEach(
        {"cpu": good(0), "nic": good(0)}, proven=False
    )
