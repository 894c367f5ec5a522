"""The keys of pools in a pool file, and of OpenShift's resource beside them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from cpupool.config.document import Text
from cpupool.config.pool_rules import CONTAINERS_LIMIT, MIXED_POOL
from cpupool.config.reader import WHOLE_NUMBER, Reader, entries
from cpupool.core import pools
from cpupool.core.cpuset import MAX_CPU, CPUSet
from cpupool.core.errors import Problem, Severity
from cpupool.core.names import meant_prefix
from cpupool.core.pool_policy import (
    ALIGN_BY_UNCORE_CACHE,
    CPU_BIND_POLICY,
    EXCLUSIVE_POLICY,
    NUMA_POLICY,
    RESERVED,
    CPUBindPolicy,
    ExclusivePolicy,
    NUMAPolicy,
    PoolPolicy,
)
from cpupool.core.pools import HyperThreadingPolicy, MixedCPUs, Pool, PoolKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cpupool.config.document import Table, Value

NODE_SELECTOR: Final = "nodeSelector"
"""The key of the labels that a node must have; CPU-Pooler's README writes it among the pools."""
_CPUS: Final = "cpus"
_OPEN_EARLY: Final = re.compile(r"(?<![0-9-])([0-9]{1,9})\s*-(?=\s*,)", re.ASCII)
_OPEN: Final = re.compile(r"(?:(.+),)?\s*([0-9]{1,9})\s*-\s*", re.ASCII | re.DOTALL)
"""A CPU list whose last range has no end: `0-1,16-`."""
_HYPER_THREADING: Final = "hyperThreadingPolicy"
_POOL_KEYS: Final = (
    _CPUS,
    _HYPER_THREADING,
    CPU_BIND_POLICY,
    NUMA_POLICY,
    ALIGN_BY_UNCORE_CACHE,
    EXCLUSIVE_POLICY,
    RESERVED,
)
_HYPER_THREADING_VALUES: Final = {policy.value: policy for policy in HyperThreadingPolicy}
_CPU_BIND_VALUES: Final = {policy.value: policy for policy in CPUBindPolicy}
_NUMA_VALUES: Final = {policy.value: policy for policy in NUMAPolicy}
_EXCLUSIVE_VALUES: Final = {policy.value: policy for policy in ExclusivePolicy}
_TRUTH_VALUES: Final = {"true": True, "false": False}
_Meaning = TypeVar("_Meaning")


class PoolReader(Reader):
    """Reads pools, and notes the problems in them."""

    __slots__ = ()

    def read_pools(self, value: Value, *, required: bool) -> Iterator[Pool]:
        """Read the pools, without those that cannot be read.

        Args:
            value: the map of pools.
            required: whether there must be a pool.
        """
        listed = self.table(value)
        if required and listed and not listed.entries:
            self.refuse(listed, "there is no pool", "give each pool a name and its cpus")
        for name, entry in entries(listed):
            if name == NODE_SELECTOR:
                what = "this stands inside pools, where each key is the name of a pool"
                self.refuse(entry, what, "move it out, to the left of the pools", entry.key)
                continue
            named = pools.is_name(name)
            if not named:
                self.refuse(
                    entry,
                    "no resource can have this name",
                    "use up to 63 letters, digits, -, _ and ., with a letter or digit at both ends",
                    entry.key,
                )
            table = self.table(entry, _POOL_KEYS)
            if table is None:
                continue
            kind = PoolKind.of_name(name)
            self._doubt_name(entry, name, kind)
            cpus, open_from = self._pool_cpus(table.get(_CPUS), kind)
            hyper_threading = self._choice(
                table.get(_HYPER_THREADING),
                kind,
                _HYPER_THREADING_VALUES,
                HyperThreadingPolicy.SINGLE_THREADED,
            )
            policy = self._policy(table, kind)
            if named and cpus is not None:
                yield Pool(name, kind, cpus, hyper_threading, policy, open_from)

    def _pool_cpus(self, value: Value, kind: PoolKind) -> tuple[CPUSet | None, int | None]:
        """Read a pool's CPU list: its CPUs, and the first CPU of its open end if it has one.

        The CPUs are None for a text that is no list.
        """
        written = value if isinstance(value, Text) else None
        found = _OPEN.fullmatch(written.text) if written else None
        early = _OPEN_EARLY.search(written.text) if written and kind is PoolKind.DEFAULT else None
        if early:
            what = f"{early[0]!r} has no end, and other CPUs follow"
            self.refuse(value, what, f"write {early[1]}- last, or its last CPU")
            return None, None
        if written is None or found is None:
            return self.cpus(value), None
        cpus, first = self.cpus(replace(written, text=found[1] or "")), int(found[2])
        if first > MAX_CPU:
            self.refuse(value, f"CPU {first} is above {MAX_CPU}", "begin with a lower CPU")
            return None, None
        if kind is not PoolKind.DEFAULT:
            what = "only the default pool may have all CPUs from one on"
            self.refuse(value, what, f"write the last CPU, as in {first}-{first + 1}")
            return None, None
        return cpus, first

    def read_mixed(self, value: Value) -> MixedCPUs | None:
        """Read whether and how the agent offers OpenShift's resource; a null is a no."""
        if isinstance(value, Text) and not value.text:
            return None
        table = self.table(value, (MIXED_POOL, CONTAINERS_LIMIT))
        if table is None:
            return None
        pool = self.text(table.get(MIXED_POOL))
        limit = self._count(table.get(CONTAINERS_LIMIT))
        if pool is None:
            return None
        return MixedCPUs(pool.text, limit) if limit else MixedCPUs(pool.text)

    def _count(self, value: Value) -> int | None:
        text = self.text(value)
        if text is None or not text.text:
            return None
        if not WHOLE_NUMBER.fullmatch(text.text):
            what = f"{text.text[:63]!r} is no whole number from 1 to 999999999"
            self.refuse(value, what, "write one, as 256, or remove the line")
            return None
        return int(text.text)

    def _policy(self, table: Table, kind: PoolKind) -> PoolPolicy:
        default = PoolPolicy()
        policy = PoolPolicy(
            bind=self._choice(table.get(CPU_BIND_POLICY), kind, _CPU_BIND_VALUES, default.bind),
            numa=self._choice(table.get(NUMA_POLICY), kind, _NUMA_VALUES, default.numa),
            align_by_uncore_cache=self._choice(
                table.get(ALIGN_BY_UNCORE_CACHE), kind, _TRUTH_VALUES, default.align_by_uncore_cache
            ),
            exclusive=self._choice(
                table.get(EXCLUSIVE_POLICY), kind, _EXCLUSIVE_VALUES, default.exclusive
            ),
            reserved=self._reserved(table.get(RESERVED), kind),
        )
        return policy if kind is PoolKind.EXCLUSIVE else default

    def _reserved(self, value: Value, kind: PoolKind) -> CPUSet:
        reserved = self.cpus(value) or CPUSet()
        if reserved:
            self._doubt(value, kind)
        return reserved

    def _choice(
        self, value: Value, kind: PoolKind, known: Mapping[str, _Meaning], absent: _Meaning
    ) -> _Meaning:
        if isinstance(value, Text) and value.text in known:
            self._doubt(value, kind)
        return self.choice(value, known, absent)

    def _doubt_name(self, entry: Value, name: str, kind: PoolKind) -> None:
        """Warn about a default pool if its name is nearly that of another kind."""
        if kind is PoolKind.DEFAULT and (prefix := meant_prefix(name)):
            what = f"with this name it is the default pool, as no {prefix} pool begins so"
            self._warn(entry, what, f"begin it with {prefix} if that is meant")

    def _doubt(self, value: Value, kind: PoolKind) -> None:
        """Warn of a key that only exclusive pools have, in a pool of another kind."""
        if kind is not PoolKind.EXCLUSIVE:
            self._warn(value, f"this has no meaning for a {kind.value} pool", "remove it")

    def _warn(self, value: Value, what: str, remedy: str) -> None:
        self.problems.append(
            Problem(what, remedy, Severity.WARNING, value.path, location=value.location)
        )
