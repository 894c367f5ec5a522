from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cpupool.config import document, kubelet_config
from cpupool.config.document import Listing, Origin, Table, Text, Value
from cpupool.config.kubelet_sources import command_line, merged, overridden
from cpupool.core.quantity import as_quantity

keys = st.sampled_from(["featureGates", "kubeReserved", "a", "b"])
values = st.recursive(
    st.one_of(st.none(), st.sampled_from(["", "x", "1"]), st.lists(st.just("y"), max_size=2)),
    lambda inner: st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
patches = st.dictionaries(keys, values, max_size=4)


@given(st.integers(0, 10**7))
def test_amounts_come_back_as_they_were(milli: int) -> None:
    assert kubelet_config.milli_of(as_quantity(milli)) == milli


@given(patches, st.lists(patches, max_size=3))
def test_drop_ins_are_merge_patches(base: dict[str, Any], later: list[dict[str, Any]]) -> None:
    expected = patched({}, base)
    for one in later:
        expected = patched(expected, one)

    assert plain(merged(table(base), *map(table, later))) == expected


@given(patches, st.lists(st.sampled_from(["A=true", "B=false"]), unique=True, min_size=1))
def test_flags_win_over_files_and_leave_the_rest(base: dict[str, Any], gates: list[str]) -> None:
    flags = command_line(("kubelet", "--kube-reserved=cpu=1", f"--feature-gates={','.join(gates)}"))
    before = patched({}, base)

    found = plain(overridden(merged(table(base)), flags.settings))

    given_ = dict(gate.split("=") for gate in gates)
    old = before.get("featureGates")
    assert found == {
        **before,
        "kubeReserved": {"cpu": "1"},
        "featureGates": {**(old if isinstance(old, dict) else {}), **given_},
    }


def patched(target: object, patch: object) -> Any:
    """Apply a merge patch as RFC 7386 has it, in section 2."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = patched(found.get(key), value)
    return found


def table(content: dict[str, Any]) -> Table:
    found = document.read(json.dumps(content), Origin("a"), [])
    assert isinstance(found, Table)
    return found


def plain(value: Value) -> Any:
    if isinstance(value, Table):
        return {key: plain(entry) for key, entry in value.entries.items()}
    if isinstance(value, Listing):
        return [plain(item) for item in value.items]
    assert isinstance(value, Text)
    return value.text
