from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cpupool.api import ttrpc_pb2
from tests.nri_agents import PLAIN, Agent, cpu_of, of
from tests.nri_frames import frames
from tests.nri_runtime import PLUGIN, FakeRuntime
from tests.searching import examples

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ("Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StateChange")


def test_no_bytes_end_the_agent(folder: Path) -> None:
    agent = Agent(folder / "nri.sock")

    @examples(60)
    @given(st.sampled_from(METHODS), st.binary(max_size=200), st.binary(max_size=60))
    def said(method: str, payload: bytes, rest: bytes) -> None:
        plugin = runtime.accept()
        request = ttrpc_pb2.Request(service=PLUGIN, method=method, payload=payload)
        plugin.write(frames(1, 1, 1, request.SerializeToString()) + rest)
        plugin.hang_up()
        agent.plugin.wake()

    with FakeRuntime(folder / "nri.sock", alone=True) as runtime, agent.running():
        said()
        assert cpu_of(runtime.welcome().create(of(PLAIN))).cpus == "0"
        # The runtime has not counted these calls, so it complains of their answers.
        runtime.problems.clear()
