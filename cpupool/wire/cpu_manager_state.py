"""The kubelet's checkpoint `cpu_manager_state`, which says which CPUs each container owns.

The agent reads the kubelet's file, and never writes it. It writes a file of its own in the shape of
version 2, which existing tools read, or of version 3 if a pod has a bubble. Beside it are the id of
the boot, what the policy has settled and how CPUs have changed.

Source: kubernetes pkg/kubelet/cm/cpumanager/state (checkpoint.go, state.go). The versions:

* 1, until kubelet 1.17: container id → CPUs.
* 2, since 1.18: pod UID → container → CPUs.
* 3, since 1.36 with the feature gate PodLevelResourceManagers: also the CPUs of whole pods.
* 4, since 1.37: the same content as JSON in the text `data`, with a checksum of its own. The other
  keys are a copy for older kubelets, without a checksum.

The checksum (`checkpoint_checksum.py`) covers Go's dump of the struct, with its name. Kubelets have
renamed the struct, and check a file without CPUs of pods as version 3, too, so several checksums
are right. Checksum 0 means that there is none. Go reads keys in upper and lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUSetParseError
from cpupool.core.grants import LATEST_UNIX_S, PastResize, RecordedChange, Sharing
from cpupool.wire.checkpoint_checksum import Reader, dump_map

if TYPE_CHECKING:
    from collections.abc import Iterator

_READER: Final = Reader("the CPU manager's state", "it is written again with the next choice")
_STRUCTS: Final = ("CPUManagerCheckpoint", "CPUManagerCheckpointV2", "CPUManagerCheckpointV3")
_BASELINE: Final = "baseline"
_LEAVING: Final = "leaving"
_RESIZES: Final = "resizes"
_BEFORE: Final = "before"
_AFTER: Final = "after"
_UNIX_S: Final = "unixSeconds"
_MOVED: Final = "moved"
_WRITTEN: Final = 2
"""The version that `encode` writes of a node without bubbles."""

Assignments = Mapping[str, Mapping[str, CPUSet]]
"""Pod UID → container → its own CPUs."""


@dataclass(frozen=True, slots=True)
class State:
    """The content of the file.

    Attributes:
        policy: the name of the CPU manager policy.
        default_cpus: the CPUs that no container owns.
        entries: pod UID → container → its own CPUs.
        pods: pod UID → its bubble (versions 3 and 4).
        by_id: container id → its own CPUs (version 1).
        version: the version of the file's shape.
        boot_id: the boot in which the agent wrote the file; empty in a file of the kubelet.
        settled: the policy's own settings for its configuration; empty in a file of the kubelet.
        sharing: pod UID → which others may run on its CPUs; empty where no pod shares its CPUs.
        changes: pod UID → container → how its CPUs have changed since it began.
        moved_unix_s: when the agent has begun to move containers within the last hour.
    """

    policy: str
    default_cpus: CPUSet = field(default_factory=CPUSet)
    entries: Assignments = field(default_factory=dict)
    pods: Mapping[str, CPUSet] = field(default_factory=dict)
    by_id: Mapping[str, CPUSet] = field(default_factory=dict)
    version: int = _WRITTEN
    boot_id: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)
    sharing: Mapping[str, Sharing] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, RecordedChange]] = field(default_factory=dict)
    moved_unix_s: tuple[int, ...] = ()


def parse(data: bytes) -> State:
    """Read a file of any version and verify its checksum.

    Raises:
        RemoteProtocolError: the file is damaged, or is not such a file.
    """
    document = _lower(_READER.document(data))
    if "data" not in document:
        boot_id = _READER.typed(document.get("bootid", ""), str, "bootId")
        settled = _texts(document.get("settled", {}), "settled")
        sharing = _sharing(_texts(document.get("sharing", {}), "sharing"))
        changes = _changes(_READER.typed(document.get("changes", {}), dict, "changes"))
        moved = _READER.optional(document.get("movedunixseconds"), list, "movedUnixSeconds")
        state = _state(document, _verified(document))
        return replace(
            state,
            boot_id=boot_id,
            settled=settled,
            sharing=sharing,
            changes=changes,
            moved_unix_s=tuple(_moment(unix_s, "movedUnixSeconds") for unix_s in moved),
        )
    text = _READER.typed(document["data"], str, "data")
    _verify(
        _READER.typed(document.get("datachecksum"), int, "dataChecksum"),
        {_READER.checksum(f"(string){text}")},
    )
    return _state(_lower(_READER.document(text)), version=4)


def encode(state: State) -> bytes:
    """Write a file of version 2 or 3, with keys of the agent beside the kubelet's."""
    entries = {
        pod: {name: str(cpus) for name, cpus in containers.items()}
        for pod, containers in state.entries.items()
    }
    body: dict[str, Any] = {
        "policyName": state.policy,
        "defaultCpuSet": str(state.default_cpus),
        "entries": entries,
    }
    named, struct = _nested(entries), _STRUCTS[0]
    if state.pods:
        body["podEntries"] = {pod: {"cpuSet": str(cpus)} for pod, cpus in state.pods.items()}
        named, struct = f"{named}{_bubbles(state.pods)}", _STRUCTS[-1]
    checksum = _READER.checksum(_dump(_lower(body), struct, named))
    document = {
        **body,
        "checksum": checksum,
        "bootId": state.boot_id,
        "settled": dict(state.settled),
    }
    if state.sharing:
        document["sharing"] = {pod: sharing.value for pod, sharing in state.sharing.items()}
    if state.changes:
        document["changes"] = {
            pod: {name: _written(change) for name, change in containers.items()}
            for pod, containers in state.changes.items()
        }
    if state.moved_unix_s:
        document["movedUnixSeconds"] = list(state.moved_unix_s)
    return json.dumps(document, separators=(",", ":")).encode()


def _written(change: RecordedChange) -> Mapping[str, object]:
    return {
        _BASELINE: str(change.baseline),
        _LEAVING: str(change.leaving),
        _RESIZES: [_past_written(past) for past in change.resizes],
    }


def _past_written(past: PastResize) -> Mapping[str, object]:
    written = {_BEFORE: str(past.before), _AFTER: str(past.after), _UNIX_S: past.unix_s}
    return {**written, _MOVED: past.moved} if past.moved else written


def _changes(found: Mapping[str, object]) -> Mapping[str, Mapping[str, RecordedChange]]:
    return {
        pod: {
            name: _change(_READER.typed(raw, dict, f"changes.{pod}.{name}"))
            for name, raw in _READER.typed(containers, dict, f"changes.{pod}").items()
        }
        for pod, containers in found.items()
    }


def _change(found: Mapping[str, Any]) -> RecordedChange:
    resizes = _READER.optional(found.get(_RESIZES), list, _RESIZES)
    return RecordedChange(
        _cpus(_text(found, _BASELINE), _BASELINE),
        _cpus(_text(found, _LEAVING), _LEAVING),
        tuple(_past(_READER.typed(each, dict, _RESIZES)) for each in resizes),
    )


def _past(found: Mapping[str, Any]) -> PastResize:
    unix_s: int | None = found.get(_UNIX_S)
    return PastResize(
        _cpus(_text(found, _BEFORE), _BEFORE),
        _cpus(_text(found, _AFTER), _AFTER),
        None if unix_s is None else _moment(unix_s, _UNIX_S),
        _text(found, _MOVED),
    )


def _moment(found: int, where: str) -> int:
    unix_s = _READER.whole(found, where)
    if unix_s > LATEST_UNIX_S:
        raise _READER.damaged(f"{where} is no Unix time")
    return unix_s


def _sharing(texts: Mapping[str, str]) -> Mapping[str, Sharing]:
    try:
        return {pod: Sharing(text) for pod, text in texts.items()}
    except ValueError as error:
        raise _READER.damaged(f"sharing: {str(error)[:80]}") from error


def _lower(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in document.items()}


def _state(document: Mapping[str, Any], version: int) -> State:
    entries = _READER.optional(document.get("entries"), dict, "entries")
    flat = version == 1
    return State(
        policy=_text(document, "policyname"),
        default_cpus=_cpus(_text(document, "defaultcpuset"), "defaultCpuSet"),
        entries={} if flat else {pod: _sets(raw, pod) for pod, raw in entries.items()},
        pods={
            pod: _pod_cpus(raw, pod)
            for pod, raw in _READER.optional(document.get("podentries"), dict, "podEntries").items()
        },
        by_id=_sets(entries, "entries") if flat else {},
        version=version,
    )


def _verified(document: Mapping[str, Any]) -> int:
    """Return the version of a file without `data`, whose checksum is right."""
    checksum = _READER.typed(document.get("checksum"), int, "checksum")
    entries = _READER.optional(document.get("entries"), dict, "entries")
    pods = _READER.optional(document.get("podentries"), dict, "podEntries")
    flat = bool(entries) and all(isinstance(cpus, str) for cpus in entries.values())
    version = 1 if flat else 3 if pods else 2
    # Only kubelets that do not know the CPUs of pods leave the checksum out.
    if checksum or pods:
        _verify(checksum, set(map(_READER.checksum, _dumps(document, entries, pods, flat=flat))))
    return version


def _verify(checksum: int, right: set[int]) -> None:
    if checksum not in right:
        content = " or ".join(map(str, sorted(right)))
        raise _READER.damaged(f"its checksum is {checksum}, and its content has {content}")


def _dumps(
    document: Mapping[str, Any], entries: dict[str, Any], pods: dict[str, Any], *, flat: bool
) -> Iterator[str]:
    """Yield Go's dump of the content for each struct that kubelets have had for it."""
    if flat or not (entries or pods):
        yield _dump(document, _STRUCTS[0], f"(map[string]string){dump_map(entries, str)}")
    if flat:
        return
    named = _nested({pod: _texts(raw, pod) for pod, raw in entries.items()})
    bubbles = _bubbles({pod: _pod_cpus(raw, pod) for pod, raw in pods.items()})
    for struct in _STRUCTS:
        if not pods:
            yield _dump(document, struct, named)
        yield _dump(document, struct, named + bubbles)


def _dump(document: Mapping[str, Any], struct: str, entries: str) -> str:
    return (
        f"(*state.{struct}){{PolicyName:(string){_text(document, 'policyname')}"
        f" DefaultCPUSet:(string){_text(document, 'defaultcpuset')}"
        f" Entries:{entries} Checksum:(checksum.Checksum)0}}"
    )


def _nested(entries: Mapping[str, Mapping[str, str]]) -> str:
    dumped = dump_map(entries, lambda containers: dump_map(containers, str))
    return f"(map[string]map[string]string){dumped}"


def _bubbles(pods: Mapping[str, CPUSet]) -> str:
    of_pods = dump_map(
        pods,
        # The struct k8s.io/utils/cpuset.CPUSet, a set of numbers.
        lambda cpus: (
            "{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})"
            f"{dump_map(dict.fromkeys(cpus, '{}'), str)}}}}}"
        ),
    )
    return f" PodEntries:(state.PodCPUAssignments){of_pods}"


def _text(document: Mapping[str, Any], key: str) -> str:
    return _READER.typed(document.get(key, ""), str, key)


def _texts(value: object, where: str) -> dict[str, str]:
    found = _READER.typed(value, dict, where)
    return {name: _READER.typed(text, str, f"{where}.{name}") for name, text in found.items()}


def _sets(value: object, where: str) -> dict[str, CPUSet]:
    texts = _texts(value, where)
    return {name: _cpus(text, f"{where}.{name}") for name, text in texts.items()}


def _pod_cpus(value: object, where: str) -> CPUSet:
    return _cpus(_text(_lower(_READER.typed(value, dict, where)), "cpuset"), where)


def _cpus(text: str, where: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetParseError as error:
        raise _READER.damaged(f"{where[:80]} is no CPU list ({str(error)[:80]})") from error
