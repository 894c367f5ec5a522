"""The state of our plugins for the QoS Resource Manager: JSON with a checksum.

A plugin writes it before it answers. A manager that has an answer does not ask again, so the file
outlives the plugin and, as the manager's own record, a reboot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.plugin_state import PluginState, ServedContainer
from cpupool.core.resource_plugins import ContainerRole, Question
from cpupool.core.workloads import ContainerRef
from cpupool.wire import answer_record
from cpupool.wire.checkpoints import Reader
from cpupool.wire.sealed import Sealed

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE: Final = Sealed(
    Reader("the state of the plugin", "remove it, and restart the pods that it serves"), 1
)


def encode(state: PluginState) -> bytes:
    """Write a state."""
    return _FILE.encode(
        [
            *({"pool": name, "cpus": str(cpus)} for name, cpus in state.pools.items()),
            *([] if state.headroom_cpus is None else [{"headroomCPUs": state.headroom_cpus}]),
            *(
                {
                    "question": _question(held.question),
                    "answer": answer_record.written(held.answer),
                }
                for held in state.held.values()
            ),
        ]
    )


def parse(data: bytes) -> PluginState:
    """Read a state.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    held, pools, headroom_cpus = {}, {}, None
    for entry in _FILE.entries(data):
        # The checksum is right: a plugin of this version has written every entry.
        if "pool" in entry:
            pools[entry["pool"]] = CPUSet.parse(entry["cpus"])
        elif "headroomCPUs" in entry:
            headroom_cpus = entry["headroomCPUs"]
        else:
            question = _question_of(entry["question"])
            held[question.container] = ServedContainer(
                question, answer_record.read(entry["answer"])
            )
    return PluginState(held, pools, headroom_cpus)


def _question(question: Question) -> dict[str, Any]:
    return {
        "pod": question.container.pod,
        "container": question.container.name,
        "namespace": question.namespace,
        "podName": question.pod_name,
        "role": question.role.name,
        "index": question.index,
        "resource": question.resource,
        "quantity": question.quantity,
        "podRole": question.pod_role,
        "podType": question.pod_type,
        "labels": dict(question.labels),
        "annotations": dict(question.annotations),
        "qosClass": question.qos_class,
    }


def _question_of(written: Mapping[str, Any]) -> Question:
    return Question(
        ContainerRef(written["pod"], written["container"]),
        written["namespace"],
        written["podName"],
        ContainerRole[written["role"]],
        written["index"],
        written["resource"],
        written["quantity"],
        written["podRole"],
        written["podType"],
        written["labels"],
        written["annotations"],
        written["qosClass"],
    )
