from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import RemoteProtocolError
from cpupool.core.grants import PastResize, RecordedChange
from cpupool.wire import cpu_manager_state
from cpupool.wire.cpu_manager_state import State

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
CPUS = st.sets(st.integers(0, 300), max_size=8).map(CPUSet)
RESIZES = st.builds(PastResize, CPUS, CPUS, st.none() | st.integers(0, 2**33))
CHANGES = st.builds(RecordedChange, CPUS, CPUS, st.lists(RESIZES, max_size=3).map(tuple))
STATES = st.builds(
    State,
    policy=TEXTS,
    default_cpus=CPUS,
    entries=st.dictionaries(TEXTS, st.dictionaries(TEXTS, CPUS, max_size=3), max_size=3),
    boot_id=TEXTS,
    changes=st.dictionaries(TEXTS, st.dictionaries(TEXTS, CHANGES, max_size=2), max_size=2),
)
KEYS = [
    *("policyName", "defaultCpuSet", "entries", "podEntries", "cpuSet", "data", "bootId"),
    *("changes", "resizes", "before", "unixSeconds"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
)


@given(STATES)
def test_a_state_survives_writing_and_reading(written: State) -> None:
    assert cpu_manager_state.parse(cpu_manager_state.encode(written)) == written


@given(STATES, st.data())
def test_damaged_bytes_are_refused_with_one_error_only(written: State, data: st.DataObject) -> None:
    good = cpu_manager_state.encode(written)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    damaged = good[:start] + data.draw(st.binary(max_size=4)) + good[end:]
    with contextlib.suppress(RemoteProtocolError):
        cpu_manager_state.parse(damaged)


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.integers(0, 1))
def test_other_json_is_refused_with_one_error_only(
    document: dict[str, object], checksum: int
) -> None:
    for keys in ({"checksum": checksum}, {"dataChecksum": checksum}):
        with contextlib.suppress(RemoteProtocolError):
            cpu_manager_state.parse(json.dumps({**document, **keys}).encode())
