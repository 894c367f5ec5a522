"""A CPU manager policy, and an agent that knows it: `python -m tests.round_robin agent`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpupool.commands import agent
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import NotEnoughCPUs
from cpupool.policies.base import Choice
from cpupool.policies.built_in import BUILT_IN
from cpupool.policies.none import NonePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpupool.core.workloads import Pod
    from cpupool.policies.base import Ask, NodeView


@dataclass(frozen=True, slots=True)
class RoundRobin(NonePolicy):
    """Gives the CPUs after those with an owner, and then those before."""

    def wants(self, pod: Pod) -> Mapping[str, int]:
        return {one.name: one.whole_cpus for one in pod.containers if one.whole_cpus}

    def available(self, view: NodeView) -> CPUSet:
        return view.free - CPUSet.of(view.cpus.first)

    def choose(self, view: NodeView, ask: Ask) -> Choice:
        if ask.count > len(ask.available):
            raise NotEnoughCPUs(ask.count, len(ask.available))
        last = max(view.grants.cpus, default=-1)
        turn = sorted(ask.available, key=lambda cpu: (cpu <= last, cpu))
        return Choice(ask.has or CPUSet(turn[: ask.count]))


class FirstCPUs(RoundRobin):
    """Gives the first CPUs, which `RoundRobin` never does."""

    def available(self, view: NodeView) -> CPUSet:
        return view.free - CPUSet.of(max(view.cpus))


POLICIES = {
    **BUILT_IN,
    "round-robin": lambda _config, _machine: RoundRobin(),
    "first-cpus": lambda _config, _machine: FirstCPUs(),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    agent.add_parser(parser.add_subparsers(), "the agent")
    return agent.run(parser.parse_args(), sys.stdout, POLICIES)


if __name__ == "__main__":
    sys.exit(main())
