"""The state of our plugins for the QoS Resource Manager: JSON with a checksum.

A plugin writes it before it answers. A manager that has an answer does not ask again, so the file
outlives the plugin and, as the manager's own record, a reboot.
"""

from __future__ import annotations

from typing import Any, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.workloads import ContainerRef
from cpupool.plugins.state import PluginState, ServedContainer
from cpupool.policies.qrm.questions import ContainerRole, Question
from cpupool.qrm import answer_record
from cpupool.wire.checkpoint_checksum import Reader
from cpupool.wire.sealed import Sealed

_READER: Final = Reader(
    "the state of the plugin", "restart the pods that it is not asked for again, and remove it"
)
_FILE: Final = Sealed(_READER, 1)


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
        if "pool" in entry:
            cpus = _READER.text(entry.get("cpus"), "cpus")
            try:
                pools[_READER.text(entry["pool"], "pool")] = CPUSet.parse(cpus)
            except CPUSetParseError as error:
                raise _READER.damaged("the CPUs of a pool are no list") from error
        elif "headroomCPUs" in entry:
            headroom_cpus = _READER.amount(entry["headroomCPUs"], "headroomCPUs")
        else:
            question = _question_of(entry.get("question"))
            answer = answer_record.read(_READER, entry.get("answer"))
            held[question.container] = ServedContainer(question, answer)
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


def _question_of(value: object) -> Question:
    written = _READER.typed(value, dict, "a question")

    def text(key: str) -> str:
        return _READER.text(written.get(key), key)

    if (role := text("role")) not in ContainerRole.__members__:
        raise _READER.damaged(f"there is no role {role[:20]}")
    return Question(
        ContainerRef(text("pod"), text("container")),
        text("namespace"),
        text("podName"),
        ContainerRole[role],
        _READER.whole(written.get("index"), "index"),
        text("resource"),
        _READER.amount(written.get("quantity"), "quantity"),
        text("podRole"),
        text("podType"),
        _READER.texts(written.get("labels"), "labels"),
        _READER.texts(written.get("annotations"), "annotations"),
        text("qosClass"),
    )
