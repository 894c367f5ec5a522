"""Grants: the CPUs that each owner has of its own, and the program that granted them.

A CPU has at most one owner: `Grants` refuses a second. A pod's grant has a part for each container.
Two parts can have the same CPUs: an init container can leave its CPUs to a container that starts
after its end.

A *bubble* is the grant of a pod that requests CPUs as a whole, by resources of its own (KEP-5526).
Some of its containers own parts of the bubble. The other containers share the rest, which is the
part `WHOLE_POD`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from cpupool.core.cpu_manager import COMPACTION
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import CPUPoolError
from cpupool.core.workloads import ContainerKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cpupool.core.assignments import Step
    from cpupool.core.requests import Resource
    from cpupool.core.topology import CPUTopology
    from cpupool.core.workloads import Container


RESIZE: Final = "resize"
CHANGES: Final = frozenset({RESIZE, COMPACTION})
"""The rules of the steps that say how a container's CPUs have changed since it began."""
_NONE: Final = CPUSet()
_REMEMBERED: Final = 8
"""How many of a container's last resizes and moves are remembered."""
LATEST_UNIX_S: Final = 253_402_300_799
"""The last second whose year has four digits."""


@dataclass(frozen=True, slots=True)
class PodOwner:
    """A pod, which owns CPUs until it ends.

    Attributes:
        uid: the id in its cgroup's name.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class PromiseOwner:
    """A promise, which names no pod: it owns CPUs until a pod has them (`manager/promises.py`).

    Attributes:
        number: the number of the promise.
    """

    number: int


Owner = PodOwner | PromiseOwner


class Source(Enum):
    """The program that granted CPUs."""

    DEVICES = "devices"
    """The kubelet gave out devices of an exclusive pool."""
    KUBELET = "kubelet"
    """The kubelet's static CPU manager chose the CPUs."""
    POLICY = "policy"
    """A policy of cpupool chose the CPUs."""
    PLUGIN = "plugin"
    """A plugin for a resource named the CPUs."""

    @property
    def of_default_pool(self) -> bool:
        """Whether the CPUs are the default pool's.

        Such CPUs stay with a pod that has ended until none of its containers has a cgroup.
        """
        return self in {Source.POLICY, Source.PLUGIN}


WHOLE_POD: Final = ""
"""The name of a part that all containers of a pod share which have no part of their own."""


class Sharing(Enum):
    """The other containers that may run on granted CPUs."""

    NONE = "none"
    BEST_EFFORT = "best effort"
    POOL = "pool"
    """Other owners of the same resource."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """CPUs that a container gives back while it runs.

    Attributes:
        cpus: the CPUs; no other owner has them yet.
        in_force: whether the container may still run there, because its notice lasts. Afterwards it
            owns them until the kernel reports that it runs there no longer.
    """

    cpus: CPUSet
    in_force: bool = True


@dataclass(frozen=True, slots=True)
class PastResize:
    """A change that has given a container other CPUs of its own: a resize, or a move.

    Attributes:
        before: the CPUs that it had.
        after: the CPUs that it had then.
        unix_s: when; None for a resize that no agent has answered.
        moved: why the agent has moved the container; empty for a resize.
    """

    before: CPUSet
    after: CPUSet
    unix_s: int | None = None
    moved: str = ""

    @property
    def rule(self) -> str:
        """The word for the change in the reasons of a container's CPUs."""
        return COMPACTION if self.moved else RESIZE

    @property
    def what(self) -> str:
        """What has changed."""
        if self.moved:
            return f"it moved from CPUs {self.before} to {self.after}, {self.moved}"
        got, gave = self.after - self.before, self.before - self.after
        said = [f"it got CPUs {got}"] if got else []
        said += [f"it gave CPUs {gave} back"] if gave else []
        return f"from cpu {len(self.before)} to {len(self.after)}: {' and '.join(said)}"


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """The change of a container's CPUs since it began, as a record keeps it.

    Attributes:
        baseline: the CPUs with which it began.
        leaving: the CPUs that it gives back.
        resizes: its last resizes, the oldest first.
    """

    baseline: CPUSet
    leaving: CPUSet = field(default_factory=CPUSet)
    resizes: tuple[PastResize, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """CPUs that one owner has of one resource.

    Attributes:
        owner: the owner of the CPUs.
        resource: the resource that they come with.
        source: the program that granted them.
        parts: container → its CPUs; `WHOLE_POD` → those of all other containers of the pod. An
            unclaimed answer has one part without a name.
        sharing: which others may run on them.
        whole_cores: no other owner runs on their SMT siblings either.
        shares_cores: other owners of the same resource may have CPUs of the same cores.
        bubble: whether it is a bubble.
        leaving: container → the CPUs that it gives back, beside those of its part.
        baselines: container → the CPUs with which it began, if its part has changed since.
        resizes: container → its last resizes and moves, the oldest first.
        reasons: container, or `WHOLE_POD` → why a policy of this agent chose its CPUs.
        cpus: the CPUs that no other owner may have: of the parts, and those that are being left.
    """

    owner: Owner
    resource: Resource
    source: Source
    parts: Mapping[str, CPUSet]
    sharing: Sharing = Sharing.NONE
    whole_cores: bool = True
    shares_cores: bool = False
    bubble: bool = False
    leaving: Mapping[str, Leaving] = field(default_factory=dict)
    baselines: Mapping[str, CPUSet] = field(default_factory=dict)
    resizes: Mapping[str, tuple[PastResize, ...]] = field(default_factory=dict, compare=False)
    reasons: Mapping[str, tuple[Step, ...]] = field(default_factory=dict, compare=False)
    cpus: CPUSet = field(init=False, compare=False)

    def __post_init__(self) -> None:
        left = (each.cpus for each in self.leaving.values())
        object.__setattr__(self, "cpus", CPUSet.union((*self.parts.values(), *left)))

    @property
    def assigned(self) -> CPUSet:
        """The CPUs that the owner must have."""
        return CPUSet.union(self.parts.values())

    def part(self, container: str) -> CPUSet:
        """Return the CPUs that a container must have."""
        return self.parts.get(container) or self.rest

    def in_force(self, container: str) -> CPUSet:
        """Return the CPUs on which a container may run now."""
        leaving = self.leaving.get(container)
        part = self.part(container)
        return part | leaving.cpus if leaving and leaving.in_force else part

    def baseline(self, container: str) -> CPUSet:
        """Return the CPUs with which a container began."""
        return self.baselines.get(container) or self.part(container)

    def resizable(self, container: str) -> bool:
        """Return whether a resize can change a container's part.

        It can if a policy of cpupool chose the part for this container: the CPUs of a whole pod
        never change.
        """
        of_policy = self.source is Source.POLICY
        return of_policy and container in self.parts and not self.whole

    @property
    def whole(self) -> bool:
        """Whether the policy has chosen CPUs for the pod as a whole."""
        return self.bubble or WHOLE_POD in self.parts

    @property
    def rest(self) -> CPUSet:
        """The CPUs that the containers without a part of their own share."""
        return self.parts.get(WHOLE_POD, _NONE)

    def serves(self, container: Container) -> bool:
        """Return whether a container of the pod runs on these CPUs.

        A debugger does not run in a bubble: it works also while the pod uses up its bubble, as
        KEP-5526 says.
        """
        return not (self.bubble and container.kind is ContainerKind.EPHEMERAL)

    def owns_part(self, container: Container) -> bool:
        """Return whether a container has a part of a bubble to itself.

        The part of an init container that shares has CPUs which others own later.
        """
        ends = container.kind is ContainerKind.INIT
        own = container.name in self.parts and not (ends and not container.level_cpus)
        return self.bubble and own

    @property
    def changes(self) -> Mapping[str, RecordedChange]:
        """Container → how its CPUs have changed since it began; without those that have not."""
        return {
            name: RecordedChange(
                baseline,
                leaving.cpus if (leaving := self.leaving.get(name)) else _NONE,
                self.resizes.get(name, ()),
            )
            for name, baseline in self.baselines.items()
        }

    def changing(
        self, container: str, cpus: CPUSet, unix_s: int | None = None, moved: str = ""
    ) -> Grant:
        """Return this grant with another part; what the container loses stays in force.

        Args:
            container: a container that has a part.
            cpus: its CPUs from now on.
            unix_s: the time now, if it is known.
            moved: why the agent moves the container; empty for a resize.
        """
        leaving = self.in_force(container) - cpus
        last = PastResize(self.parts[container], cpus, unix_s, moved)
        past = (*self.resizes.get(container, ()), last)[-_REMEMBERED:]
        return replace(
            self,
            parts={**self.parts, container: cpus},
            leaving=_with(self.leaving, container, Leaving(leaving) if leaving else None),
            baselines={**self.baselines, container: self.baseline(container) & cpus},
            resizes={**self.resizes, container: past},
        )

    def moving(
        self, container: str, cpus: CPUSet, baseline: CPUSet, unix_s: int, why: str
    ) -> Grant:
        """Return this grant with as many other CPUs for a container.

        Args:
            container: a container that has a part.
            cpus: its CPUs from now on; what it loses stays in force.
            baseline: those that it keeps in place of the CPUs with which it began.
            unix_s: the time now.
            why: why it moves.
        """
        moved = self.changing(container, cpus, unix_s, why)
        return replace(moved, baselines={**moved.baselines, container: baseline})

    def narrowed(self, container: str) -> Grant:
        """Return this grant after the notice of a container has ended."""
        leaving = self.leaving[container]
        return replace(self, leaving={**self.leaving, container: replace(leaving, in_force=False)})

    def settled(self, container: str, found: CPUSet) -> Grant:
        """Return this grant after the kernel has reported the CPUs on which a container runs."""
        leaving = self.leaving.get(container)
        if leaving is None or leaving.in_force or not (gone := leaving.cpus - found):
            return self
        left = leaving.cpus - gone
        return replace(
            self,
            leaving=_with(self.leaving, container, replace(leaving, cpus=left) if left else None),
        )

    def reason(self, container: str) -> tuple[Step, ...]:
        """Return why a container has its CPUs; empty where this agent did not choose them."""
        return self.reasons.get(container) or self.reasons.get(WHOLE_POD, ())

    def cut(self, cpus: CPUSet) -> Grant:
        """Return this grant limited to these CPUs, without containers that then have no CPU."""
        if self.cpus <= cpus:
            return self
        parts = {name: part & cpus for name, part in self.parts.items()}
        left = {name: part for name, part in parts.items() if part}
        leaving = {
            name: replace(each, cpus=each.cpus & cpus) for name, each in self.leaving.items()
        }
        return replace(
            self, parts=left, leaving={name: each for name, each in leaving.items() if each.cpus}
        )

    def joined(self, other: Grant) -> Grant:
        """Return this grant with the parts of another grant of its owner and resource."""
        parts = dict(self.parts)
        for name, part in other.parts.items():
            parts[name] = parts[name] | part if name in parts else part
        return replace(
            other,
            parts=parts,
            leaving={**self.leaving, **other.leaving},
            baselines={**self.baselines, **other.baselines},
            resizes={**self.resizes, **other.resizes},
            whole_cores=self.whole_cores or other.whole_cores,
            bubble=self.bubble or other.bubble,
            reasons={**self.reasons, **other.reasons},
        )


_Key = tuple[Owner, "Resource"]


class GrantConflict(CPUPoolError):
    """CPUs that have two owners.

    Attributes:
        cpus: the CPUs.
    """

    def __init__(self, cpus: CPUSet) -> None:
        self.cpus = cpus
        super().__init__(f"CPUs {cpus} have two owners; this is a defect of cpupool, report it")


@dataclass(frozen=True, slots=True)
class Grants:
    """Every grant of a node; immutable.

    Attributes:
        all: owner and resource → its grant.
        cpus: the CPUs that have an owner.
        chosen: the id in a pod's cgroup name → the pod's grant of the default pool's CPUs.

    Raises:
        GrantConflict: two owners have a CPU; `adding` never causes this.
    """

    all: Mapping[_Key, Grant] = field(default_factory=dict)
    cpus: CPUSet = field(init=False, repr=False, compare=False)
    chosen: Mapping[str, Grant] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owned: dict[Owner, CPUSet] = {}
        for grant in self:
            has = owned.get(grant.owner)
            owned[grant.owner] = has | grant.cpus if has else grant.cpus
        cpus = CPUSet()
        for own in owned.values():
            if not cpus.isdisjoint(own):
                raise GrantConflict(cpus & own)
            cpus |= own
        chosen = {uid: grant for uid, grant in self.of_pods if grant.source.of_default_pool}
        object.__setattr__(self, "cpus", cpus)
        object.__setattr__(self, "chosen", chosen)

    def __iter__(self) -> Iterator[Grant]:
        return iter(self.all.values())

    def __bool__(self) -> bool:
        return bool(self.all)

    def adding(self, claims: Iterable[Grant], topology: CPUTopology | None = None) -> Grants:
        """Return these grants, and from each claim in turn the CPUs that no other owner has.

        Args:
            claims: their owners may have grants already, also of the same resource.
            topology: with it a core has one owner, too, except where the grants of a resource may
                share cores (`Grant.shares_cores`). Existing grants are not checked again.
        """
        found, taken = dict(self.all), self.cpus
        first: dict[int, _Key] = {}

        def note(key: _Key, cpus: CPUSet) -> None:
            for cpu in topology.with_siblings(cpus) if topology else ():
                first.setdefault(cpu, key)

        def suits(cpu: int, claim: Grant, key: _Key) -> bool:
            of_core, resource = first.get(cpu, key)
            if of_core == claim.owner or (claim.shares_cores and resource == claim.resource):
                return True
            return not (claim.whole_cores or found[of_core, resource].whole_cores)

        claims = tuple(claims)
        for key, grant in self.all.items() if topology and claims else ():
            note(key, grant.cpus)
        for claim in claims:
            key = (claim.owner, claim.resource)
            free = claim.cpus - taken
            if free != claim.cpus:
                own = (grant.cpus for (owner, _), grant in found.items() if owner == claim.owner)
                free = claim.cpus - (taken - CPUSet.union(own))
            if topology:
                free = CPUSet(cpu for cpu in free if suits(cpu, claim, key))
            got = claim.cut(free)
            if got.cpus:
                found[key] = found[key].joined(got) if key in found else got
                taken |= got.cpus
                note(key, got.cpus)
        return Grants(found)

    def replacing(self, grant: Grant) -> Grants:
        """Return these grants with another grant of the same owner and resource.

        Raises:
            GrantConflict: another owner has one of its CPUs.
        """
        return Grants({**self.all, (grant.owner, grant.resource): grant})

    def relieved(self) -> Grants:
        """Return these grants as they are once every container has left what it gives back."""
        return Grants({key: replace(grant, leaving={}) for key, grant in self.all.items()})

    def without(self, owners: Collection[Owner]) -> Grants:
        """Return these grants without those of owners that have ended."""
        return Grants({key: grant for key, grant in self.all.items() if key[0] not in owners})

    def of(self, owner: Owner) -> Mapping[Resource, Grant]:
        """Return the grants of an owner: resource → grant."""
        return {resource: grant for (who, resource), grant in self.all.items() if who == owner}

    def parts(self, pod: str, resource: Resource) -> Mapping[str, CPUSet]:
        """Return the CPUs that a pod has of a resource: container → CPUs."""
        grant = self.all.get((PodOwner(pod), resource))
        return grant.parts if grant else {}

    def part(self, pod: str, resource: Resource, container: str) -> CPUSet:
        """Return the CPUs that a container of a pod has of a resource."""
        return self.parts(pod, resource).get(container, CPUSet())

    @property
    def of_pods(self) -> Iterator[tuple[str, Grant]]:
        """The grants of pods, with each pod's id in its cgroup's name."""
        for grant in self:
            if isinstance(grant.owner, PodOwner):
                yield grant.owner.uid, grant


def _with(
    leaving: Mapping[str, Leaving], container: str, now: Leaving | None
) -> Mapping[str, Leaving]:
    """Return what containers give back, with another value for one of them; None for nothing."""
    others = {name: each for name, each in leaving.items() if name != container}
    return others if now is None else {**others, container: now}
