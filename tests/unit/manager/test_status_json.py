"""The reader of the status file: what it takes, and how it refuses the rest."""

from __future__ import annotations

import pytest

from cpupool.manager.status_json import from_json
from cpupool.wire.json_text import JSONRefused
from tests import statuses

DOCUMENT = statuses.document()
PLACES = [path for path in statuses.places(DOCUMENT) if path]
OTHERS: tuple[object, ...] = (
    None,
    True,
    7,
    1.5,
    "text",
    [],
    ["text"],
    {},
    {"a": {}},
    [[]],
    2**63,
    -(10**400),
)
NULLABLE = {
    *("choice", "mixedCPUs", "cpuManager", "resourceUsedThresholdWithBE", "reserved"),
    *("changes", "notice_ends_unix_s", "unix_s", "systemPods", "bubble", "compaction"),
}
"""Of an object that may be there or not, null is as good as none."""
OPTIONAL = {
    *("mixedCPUs", "cpuManager", "reserved", "refused", "sets", "sizes", "plugin_folders"),
    *(
        "plugins",
        "lost",
        "node_resources",
        "nri",
        "withheld",
        "qos",
        "assigned",
        "answers",
        "texts",
        "choice",
        "changes",
        "notice_ends_unix_s",
        "unix_s",
    ),
    *("options", "topologyScope", "resourceUsedThresholdWithBE", "maxNoticeSeconds"),
    *("eligible", "systemPods", "namespaces", "podLevelResources", "bubble"),
    *("compaction", "moved"),
}
"""What earlier agents of this schema did not write, or what is as good as none."""


def test_a_status_comes_back_as_it_was() -> None:
    assert from_json(DOCUMENT) == statuses.STATUS


def test_a_value_of_another_type_is_refused_by_its_name() -> None:
    refused = 0
    for path in PLACES:
        was = statuses.at(DOCUMENT, path)
        for other in OTHERS:
            key = path[-1]
            if type(other) is type(was) and abs(other if isinstance(other, int) else 0) < 2**63:
                continue
            if other is None and key in NULLABLE:
                continue
            if path == ("cpuManager", "reserved") and other in ("text", 7):
                continue
            if path == ("cpuManager",) and other == {}:
                continue
            with pytest.raises(JSONRefused) as error:
                from_json(statuses.with_value(DOCUMENT, path, other))
            assert str(next(step for step in path[::-1] if isinstance(step, str))) in str(
                error.value
            )
            refused += 1
    assert refused > 1000


def test_a_member_that_is_missing_is_refused_by_its_name() -> None:
    for path in PLACES:
        key = path[-1]
        names = path[-2:-1] and path[-2] in {"draining", "pools", "policy", "values", "sizes"}
        if isinstance(key, int) or key in OPTIONAL or names:
            from_json(statuses.without(DOCUMENT, path))
            continue
        if path == ("sets", "best effort"):
            continue
        with pytest.raises(JSONRefused, match=key):
            from_json(statuses.without(DOCUMENT, path))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("containers", 0, "wanted"), "x", "containers[0].wanted: 'x' is not a CPU list"),
        (("containers", 0, "found"), "9-1", "containers[0].found: '9-1' is not a CPU list"),
        (("containers", 1, "shares", 0, "pool"), "x", "shares[0].pool: 'x' is no resource"),
        (("pools", "shared_b", "kind"), "x", "pools.shared_b.kind: 'x' is not a valid"),
        (("pools", "exclusive_a", "policy", "numaPolicy"), "x", "pools.exclusive_a.policy is"),
        (("pools", "default", "policy", "alignByUncoreCache"), "x", "neither true nor false"),
        (("cpuManager", "options"), ["x"], "cpuManager.options has 'x', which is no option"),
        (("schema",), "cpupool-status/1", "schema is 'cpupool-status/1', and not"),
        (("sets",), {"best effort": ""}, "sets.default is missing"),
        (("containers", 0, "name"), 10**30, "containers[0].name is a whole number, and not a text"),
        (("draining", "exclusive_a"), 2**63, "draining.exclusive_a is a number beyond 64 bits"),
    ],
)
def test_a_value_that_means_nothing_is_refused(
    path: statuses.Path, value: object, said: str
) -> None:
    with pytest.raises(JSONRefused) as error:
        from_json(statuses.with_value(DOCUMENT, path, value))
    assert said in str(error.value)


def test_a_member_of_another_name_is_ignored() -> None:
    later = statuses.with_value(DOCUMENT, ("later",), [{}])
    assert from_json(later) == statuses.STATUS
