"""The words of pods about changes of their CPUs, by an agent process under the policy `dynamic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.machines import MACHINES
from tests.scenarios.test_agent_process import living

if TYPE_CHECKING:
    from pathlib import Path

DYNAMIC = 'cpuManager: {policy: dynamic, reserved: "0-1", maxNoticeSeconds: 5}\n'


def annotated(words: dict[str, str]) -> dict[str, str]:
    return {f"nokia.k8s.io/{key}": word for key, word in words.items()}


def test_words_that_the_node_does_not_follow_are_events_of_a_pod_that_runs(folder: Path) -> None:
    said = {
        "good": {"cpu-notice-seconds": "5", "cpu-moves": "any"},
        "long": {"cpu-notice-seconds": "6"},
        "strange": {"cpu-notice-seconds": "5s", "cpu-moves": "yes"},
    }
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}}
    containers = [{"name": "a", "resources": resources}]
    with living(folder, MACHINES["laptop_4c8t"].write(folder), {}) as world:
        world.mount.show(default=DYNAMIC)
        with world.agent():
            good, *_ = [
                world.node.run_pod(
                    {
                        "kind": "Pod",
                        "metadata": {"name": name, "annotations": annotated(words)},
                        "spec": {"containers": containers},
                    }
                )
                for name, words in said.items()
            ]
            world.await_containers(
                dict.fromkeys(world.containers(), "0-1")
                | {"good/a": "2-3", "long/a": "4-5", "strange/a": "6-7"}
            )
            notices = [world.await_event("CPUNoticeIgnored", name) for name in ("long", "strange")]
            moves = world.await_event("CPUMovesIgnored", "strange")

            assert all("no whole number from 0 to 5;" in notice for notice in notices)
            assert moves.endswith("none of never, same-l3, same-numa, any; write one of them")
            ignored = ("CPUNoticeIgnored", "CPUMovesIgnored")
            assert not any(world.events(reason, "good") for reason in ignored)
            metadata = {"annotations": annotated({"cpu-notice-seconds": "x"})}
            world.node.edit_pod(
                good.uid, lambda body: {**body, "metadata": {**body["metadata"], **metadata}}
            )
            assert world.await_event("CPUNoticeIgnored", "good") == notices[0]
