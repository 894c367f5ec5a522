from __future__ import annotations

from contextlib import closing

from hypothesis import example, given
from hypothesis import strategies as st

from cpupool.host.uevents import concerns_cpus
from tests.netlink import Kernel

names = st.binary(max_size=20).filter(lambda text: b"\0" not in text)
fields = st.lists(names.filter(lambda text: not text.startswith(b"SUBSYSTEM=")))


@given(st.binary(max_size=20_000))
@example(b"")
@example(b"\0" * 20_000)
@example(b"SUBSYSTEM=cpu")
@example(b"A" * 20_000)
def test_any_bytes_are_an_event(message: bytes) -> None:
    # What names no subsystem was not understood: the machine is looked at.
    assert concerns_cpus(message) or b"SUBSYSTEM=" in message
    with closing(Kernel()) as kernel:
        kernel.send(message, port=7)
        assert not kernel.events.wait(0)
        kernel.send(message)
        assert kernel.events.wait(0) == concerns_cpus(message[: 8 * 1024])


@given(fields, names, fields)
def test_the_subsystem_decides_wherever_it_stands(
    before: list[bytes], subsystem: bytes, after: list[bytes]
) -> None:
    message = b"\0".join([*before, b"SUBSYSTEM=" + subsystem, *after])
    assert concerns_cpus(message) == (subsystem == b"cpu")
