"""Admission takes whatever the API server may send, and its words reach the process unchanged."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cpupool.core.errors import ManifestError, RemoteProtocolError
from cpupool.core.names import STARTER
from cpupool.webhook.admission.decision import Admitted, Denied, admit
from cpupool.webhook.admission.json_patch import patch
from cpupool.webhook.admission.review import answer
from cpupool.webhook.admission.rules import CFSQuotas, LargestPool, RequiredAgent, Rules
from tests.pods import container, expanded, pod, process, review, stored
from tests.searching import examples

POOLS = {"exclusive-a": LargestPool(64, multi_threaded=True), "shared-a": LargestPool(8)}
ENABLE_SHARED = "workload.openshift.io/enable-shared-cpus"
ALLOWED = {"workload.mixedcpus.openshift.io/allowed": ""}
RULES = st.builds(
    Rules,
    pools=st.sampled_from([POOLS, None]),
    cfs_quotas=st.sampled_from(list(CFSQuotas)),
    required_agent=st.sampled_from(list(RequiredAgent)),
    mixed=st.sampled_from([{}, {"shared-a": 8}, {"shared-a": 8, "shared-b": 9}]),
    namespaces=st.sampled_from([lambda _: ALLOWED, lambda _: ALLOWED, lambda _: {}]),
)
VARIABLES = {"HOME": "/root", "EXCLUSIVE_CPUS": "2-3", "A B": "$(HOME)", "": "empty"}

HOSTILE = st.sampled_from(
    ["$(HOME)", "$$", "$", "$(", "$(A B)", "$()", ")", "é", "\n", '"', "'", "\\", "--", "--process"]
)
WORDS = st.one_of(
    st.lists(HOSTILE, max_size=6).map("".join),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
)
PROCESSES = st.lists(
    st.tuples(WORDS.filter(bool), st.lists(WORDS, max_size=4), st.sampled_from(sorted(POOLS))),
    min_size=1,
    max_size=5,
)


def started(args: list[str]) -> list[tuple[str, list[str]]]:
    """Read the processes from the starter's arguments: where each runs, and its words."""
    first = args.index("--process")
    options = args[:first]
    assert options[::2] == ["--exclusive", "--shared"]
    found: list[tuple[str, list[str]]] = []
    place = first
    while place < len(args):
        assert args[place] == "--process"
        number, where, cpus, count = args[place + 1].split(":")
        assert (int(number), int(cpus) > 0) == (len(found), where != "shared")
        found.append((where, args[place + 2 : place + 2 + int(count)]))
        place += 2 + int(count)
    return found


@given(PROCESSES, st.booleans(), RULES)
@example([("$" * 131_071, [], "exclusive-a")], False, Rules())
@example([("x", ["\U0001f600" * 32_767 + "xyz"], "exclusive-a")], False, Rules())
def test_every_word_of_the_annotation_reaches_its_process(
    listed: list[tuple[str, list[str], str]], ascii_only: bool, rules: Rules
) -> None:
    wanted = [*listed, ("last", [], "shared-a")]
    specs = [process(word, *args, pool=pool) for word, args, pool in wanted]
    text = json.dumps([{"container": "main", "processes": specs}], ensure_ascii=ascii_only)
    milli = sum(pool == "shared-a" for _, _, pool in wanted)
    body = pod(container(pools={"exclusive-a": 64, "shared-a": milli}), processes=text)
    response = answer(review(body), rules)["response"]
    (made,) = stored(body, response)["spec"]["containers"]
    argv = [expanded(word, VARIABLES) for word in (*made["command"], *made["args"])]
    assert argv[0] == STARTER
    where = {"exclusive-a": "CPUPOOL_CPUS_EXCLUSIVE_A", "shared-a": "shared"}
    assert started(argv[1:]) == [(where[pool], [word, *args]) for word, args, pool in wanted]


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, max_size=4), RULES)
def test_a_pods_own_command_is_handed_on_as_it_stands(
    command: list[str], args: list[str], rules: Rules
) -> None:
    assume(command[0] != STARTER)
    body = pod(container(pools={"exclusive-a": "1"}, command=command, args=args))
    decision = admit(body, rules)
    assert isinstance(decision, Admitted)
    (made,) = decision.body["spec"]["containers"]
    assert made["args"] == ["--exclusive", "CPUPOOL_CPUS_EXCLUSIVE_A", "--", *command, *args]


# Pods as people write them, in which then anything may stand anywhere.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.dictionaries(
    st.sampled_from([*POOLS, "exclusive-b", "other"]), st.integers(0, 9).map(str), max_size=3
)
CPU = st.dictionaries(st.just("cpu"), st.sampled_from(["0", "1", "2500m", 4, "x"]))
NATIVE = st.just({"cpu": "2", "memory": "1Gi"}) | CPU
STARTER_WORDS = st.sampled_from(["/opt/cpupool/process-starter", "--", "--shared", "app"])
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "x\ny"])},
        optional={
            "command": st.lists(STARTER_WORDS, max_size=3),
            "args": st.lists(STARTER_WORDS, max_size=3),
            "env": st.lists(
                st.fixed_dictionaries(
                    {"name": st.sampled_from(["A", "CPU_POOLS", "SHARED_CPUS", "CPUPOOL_X"])},
                    optional={"value": st.sampled_from(["shared", "exclusive"])},
                ),
                max_size=1,
            ),
            "resources": st.builds(
                lambda pools, requests, limits: {
                    "requests": {**pools, **requests},
                    "limits": {**pools, **limits},
                },
                st.builds(
                    lambda pools, shared: (
                        {f"nokia.k8s.io/{k}": v for k, v in pools.items()} | shared
                    ),
                    REQUESTS,
                    st.dictionaries(st.just(ENABLE_SHARED), st.sampled_from(["0", "1", "2"])),
                ),
                NATIVE,
                NATIVE,
            ),
        },
    ),
    max_size=3,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """List every place in a document: what it is in, and where in that."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, one in inner for place in ((value, key), *places(one))]
    return []


def annotated(draw: st.DrawFn, spec: Any) -> Any:
    """Write an annotation that suits the containers' requests."""
    entries = []
    for one in spec["containers"]:
        limits = one.get("resources", {}).get("limits", {})
        pools = {key.partition("/")[2]: amount for key, amount in limits.items() if "/" in key}
        wanted = draw(st.booleans())
        if pools and wanted:
            listed = [
                process("app", *draw(st.lists(WORDS, max_size=2)), pool=pool, cpus=int(amount))
                for pool, amount in pools.items()
            ]
            entries.append({"container": one["name"], "processes": listed})
    return entries


def spoil(draw: st.DrawFn, document: Any) -> None:
    """Put anything anywhere, once or twice, or not at all."""
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if found := places(document):
            inside, key = found[draw(st.integers(0, len(found) - 1))]
            inside[key] = draw(JSON)


@st.composite
def pods(draw: st.DrawFn) -> Any:
    spec = draw(
        st.fixed_dictionaries(
            {"containers": CONTAINERS},
            optional={
                "initContainers": CONTAINERS,
                "ephemeralContainers": CONTAINERS,
                "resources": st.fixed_dictionaries({"limits": CPU}),
            },
        )
    )
    body: Any = {"metadata": {"annotations": {"other": "x"}}, "spec": spec}
    if entries := annotated(draw, spec):
        spoil(draw, entries)
        body["metadata"]["annotations"]["nokia.k8s.io/cpus"] = json.dumps(entries)
    spoil(draw, body)
    return body


PODS = pods()


@st.composite
def reviews(draw: st.DrawFn) -> Any:
    document = review(
        draw(PODS),
        draw(st.sampled_from(["CREATE", "CREATE", "UPDATE", "DELETE"])),
        old=draw(PODS),
        subResource=draw(st.sampled_from(["", "", "ephemeralcontainers", "status"])),
    )
    spoil(draw, document)
    return document


@examples(300)
@given(PODS, RULES)
def test_a_pod_is_admitted_denied_or_called_none(body: Any, rules: Rules) -> None:
    before = json.dumps(body)
    try:
        decision = admit(body, rules)
    except ManifestError:
        return
    finally:
        assert json.dumps(body) == before
    if isinstance(decision, Denied):
        assert decision.problems
        assert all(line.isprintable() for line in decision.message.splitlines())
        return
    assert all(warning.isprintable() and len(warning) <= 256 for warning in decision.warnings)
    again = admit(decision.body, rules)
    assert isinstance(again, Admitted)
    assert json.dumps(again.body) == json.dumps(decision.body)
    assert patch(decision.body, again.body) == []


def nested(levels: int, *, objects: bool) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


ODD: list[Any] = [
    *(10**5000, -(2**63) - 1, float("nan"), float("inf"), 5e-324, "1e999", "9" * 5000),
    *(True, None, "", "\0", "\ud800", {"\udfff": "\ud800"}, [None], [[]]),
]
"""What a JSON parser may come up with; Python's own refuses some of it."""


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("rules", [Rules(), Rules(pools=POOLS)], ids=["unknown", "known"])
def test_a_review_with_anything_anywhere_is_answered_or_refused(
    operation: str, rules: Rules
) -> None:
    native = {"nokia.k8s.io/shared-a": "5", "cpu": "1"}
    document = review(
        pod(
            container(pools={"exclusive-a": "1"}, command=["x"], args=["y"]),
            container("b", pools={"exclusive-a": "1"}, env=[{"name": "A", "value": "b"}]),
            processes=[{"container": "b", "processes": [process()]}],
            initContainers=[container("c", resources={"limits": native, "requests": native})],
            ephemeralContainers=[container("d")],
            resources={"limits": {"cpu": "99"}},
        ),
        operation,
        old=pod(container()),
        subResource="",
    )
    assert answer(document, rules)["response"]["allowed"]
    odd = (*ODD, *(nested(100_000, objects=objects) for objects in (False, True)))
    for inside, key in places(document):
        right = inside[key]
        for inside[key] in odd:
            try:
                answered = answer(document, rules)
            except RemoteProtocolError:
                continue
            json.dumps(answered)
        inside[key] = right


@examples(300)
@given(reviews(), RULES, st.booleans())
def test_every_review_is_answered_or_refused(document: Any, rules: Rules, mutate: bool) -> None:
    try:
        answered = answer(document, rules, mutate=mutate)
    except RemoteProtocolError:
        return
    response = answered.pop("response")
    assert answered == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert response["uid"] == document["request"]["uid"]
    assert response["allowed"] is ("status" not in response)
    assert response.keys() <= {"uid", "allowed", "status", "warnings", "patchType", "patch"}
    body = document["request"]["object"]
    if "patch" in response:
        decision = admit(body, rules)
        assert isinstance(decision, Admitted)
        wanted = json.dumps(decision.body)
        changes = jsonpatch.JsonPatch.from_string(base64.b64decode(response["patch"]).decode())
        assert json.dumps(stored(body, response)) == json.dumps(changes.apply(body)) == wanted
    json.dumps(answered)
