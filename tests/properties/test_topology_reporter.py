"""Whatever other programs write and the API server answers: the object is right in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver import FakeAPIServer
from tests.searching import examples
from tests.unit.agent.topology_reporter.reporting import (
    NODE,
    PATH,
    SERVED,
    Reporting,
    reporting,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

PODS: Final = st.lists(st.sampled_from("abcd"), unique=True)
FOREIGN: Final = (
    {"zones": [{"name": "node-0", "type": "Node"}]},
    {"zones": [{"name": "x", "type": "Node", "resources": []}], "attributes": []},
    {"topologyPolicies": ["BestEffort"]},
    {"metadata": {"annotations": {"note": "not ours"}, "ownerReferences": []}},
)


def refused(answer: tuple[int, int, dict[str, str], bytes | None]) -> Callable[[Reporting], None]:
    code, times, headers, body = answer
    return lambda node: node.api.refuse(code, "Refused", times=times, headers=headers, body=body)


def overwritten(changes: dict[str, object], manager: str) -> Callable[[Reporting], None]:
    def overwrite(node: Reporting) -> None:
        if node.api.has(PATH):
            node.api.change_as(manager, PATH, changes)

    return overwrite


def deleted(node: Reporting) -> None:
    if node.api.has(PATH):
        node.api.forget(PATH)


EVENTS: Final = st.one_of(
    st.tuples(
        st.sampled_from([404, 409, 410, 422, 429, 500, 503]),
        st.integers(1, 3),
        st.sampled_from([{}, {"Retry-After": "3"}, {"Retry-After": "soon"}]),
        st.sampled_from([None, b"", b"[]", b"\xff", b'{"metadata": 3, "items": [7]}']),
    ).map(refused),
    st.builds(overwritten, st.sampled_from(FOREIGN), st.sampled_from(["nfd", "kubectl"])),
    st.just(deleted),
)


@examples(20)
@given(events=st.lists(st.tuples(EVENTS, PODS, st.integers(1, 12)), min_size=3, max_size=12))
def test_the_object_is_right_once_others_leave_it_alone(
    events: list[tuple[Callable[[Reporting], None], list[str], int]],
) -> None:
    with FakeAPIServer(NODE) as api:
        api.crds = dict(SERVED)
        with reporting(api) as node:
            node.pass_time(5.0)
            for event, pods, looks in events:
                event(node)
                node.run_pods(*pods)
                for _ in range(looks):
                    node.now_s += 1.0
                    node.role.step()
            deleted(node)
            node.run_pods("web")

            def right() -> bool:
                node.now_s += 60.0
                node.role.step()
                return api.has(PATH) and {"zones", "attributes"} <= node.object.keys()

            eventually(right, "the object is right")
            node.pass_time(60.0)
            tries, fingerprint = node.tries, node.fingerprint
            node.pass_time(600.0)
            assert (node.tries, node.fingerprint) == (tries, fingerprint)
            assert {zone["name"] for zone in node.object["zones"]} == {"node-0", "node-1"}
            assert len(node.owners()) == 1
