"""Measure how fast and how well CPUs are chosen, and write docs/benchmarks.md: `make bench-docs`.

Or `python -m benchmarks.choosing`. All inputs are made from seeds: only the times differ from one
run to the next.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.bursts import BURSTS, PAIRS, bursts
from benchmarks.choice_quality import PODS, SEEDS, quality
from benchmarks.choice_times import CALLS, CHOICES, MERGES, PROVIDERS, calls, choices, merges
from benchmarks.cpu_manager import (
    CREATED,
    NEIGHBOURS,
    OWNERS,
    PLANS,
    ROUNDS,
    SHARING,
    creates,
    neighbours,
    plans,
)
from benchmarks.documents import table
from benchmarks.koordinator import ROUNDS as ARRIVALS
from benchmarks.koordinator import SHARING as SHARING_LS
from benchmarks.koordinator import SLOW_S, arrivals
from benchmarks.node_topology import EVENTS, figures, refusals
from benchmarks.pointer_chase import ACCESSES, BATCHES, CHASED_MIB, COPIED_MIB, pointer_chase
from benchmarks.pointer_chase import CPUS as CHASE_CPUS
from benchmarks.pointer_chase import IMAGE as CHASE_IMAGE
from benchmarks.pointer_chase import ROUNDS as CHASE_ROUNDS
from benchmarks.resource_plugins import ADMITTED, GIVEN, plugins
from benchmarks.wakeups import BUSY, IMAGE, WAKE_UPS, wakeups
from benchmarks.wakeups import CPUS as WAKE_UP_CPUS
from benchmarks.wakeups import ROUNDS as WAKE_UP_ROUNDS
from benchmarks.workloads import PAUSE_S
from tests.topology_match_experiment import NODES

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    """Run everything, which takes a few minutes, and write the document."""
    started_s = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - started_s:4.0f} s  {what}", file=sys.stderr, flush=True)

    DOCUMENT.write_text(
        _TEXT.format(
            python=f"{platform.python_implementation()} {platform.python_version()}",
            cpus=len(os.sched_getaffinity(0)),
            number=CHOICES,
            choices=choices(tell),
            merged=MERGES,
            providers=PROVIDERS,
            merges=merges(tell),
            called=CALLS,
            calls=calls(tell),
            pods=PODS,
            traces=len(SEEDS),
            quality=quality(tell),
            owners=OWNERS,
            sharing=SHARING,
            created=CREATED // 2,
            creates=creates(tell),
            planned=PLANS,
            plans=plans(tell),
            rounds=ROUNDS,
            beside=NEIGHBOURS,
            neighbours=neighbours(tell),
            pairs=PAIRS,
            bursts_each=BURSTS,
            bursts=table(("what", "measured", "aim"), bursts()),
            busy=BUSY,
            waking=f"{WAKE_UPS * WAKE_UP_ROUNDS:,}",
            waking_rounds=WAKE_UP_ROUNDS,
            waking_cpus=WAKE_UP_CPUS,
            pause_s=PAUSE_S,
            ls_pods=SHARING_LS,
            arrived=ARRIVALS,
            slow_ms=f"{SLOW_S * 1000:g}",
            arrivals=arrivals(tell),
            wakeups=wakeups(tell),
            image=f"images/{IMAGE.name}",
            chase=pointer_chase(tell),
            chase_image=f"images/{CHASE_IMAGE.name}",
            chased=CHASED_MIB,
            copied=COPIED_MIB,
            followed=f"{CHASE_ROUNDS * BATCHES * ACCESSES:,}",
            accesses=ACCESSES,
            chase_rounds=CHASE_ROUNDS,
            chase_cpus=CHASE_CPUS,
            recorded=NODES,
            refusals=refusals(tell),
            events=EVENTS,
            reporter=figures(tell),
            admitted=ADMITTED,
            serving=len(GIVEN),
            plugins=plugins(tell),
        ),
        encoding="utf-8",
    )


_TEXT: Final = """# How fast and how well CPUs are chosen

Written by `make bench-docs` (`python -m benchmarks.choosing`); do not edit it by hand. Measured
with {python} on a machine with {cpus} CPUs. All inputs are made from seeds: another run
asks the same questions and finds the same answers, in other times.

Times are in milliseconds: median / 99th percentile / maximum. The aim is for the 99th percentile,
and times that miss it are **bold**. Ratios travel to other machines, absolute figures do not.

## One choice

{choices}

{number} requests per cell, for 1 to all of the CPUs that are free, on machines that are empty or
full here and there: some cores, a part of each NUMA node, or single threads are free. It is the
CPU time of the calling thread: a choice waits for nothing, so this is what it takes on a CPU of its
own.

* *kubelet* and *Koordinator* are the algorithms of these programs as cpupool has them
  (`policies/accumulators/kubelet.py`, `policies/accumulators/koordinator.py`).
* *pool* is what GetPreferredAllocation asks (`policies/pools/preferred_cpus.py`). *Without a
  policy* it lists one thread of each core and is packed; the others list all threads. *Full cores,
  apart* is `cpuBindPolicy: fullPhysicalCores` with `numaPolicy: leastAllocated` and
  `exclusivePolicy: numaNode`; *distributed* is `fullPhysicalCores` with `numaPolicy: distributed`;
  *spread* is `cpuBindPolicy: spreadAcrossCores`.

## The Topology Manager's hints

{merges}

The sets of NUMA nodes that one resource offers, and the merging of what {providers} resources
offer; {merged} times each. Some resources are on all nodes, some on half of them, and all
are partly in use. CPU time, as above.

## GetPreferredAllocation

{calls}

{called} calls per cell over a unix socket, one after the other, for a pool of all threads of a
machine with 8 NUMA nodes and some free cores: from the request to the decoded answer,
with the asking and the answering side in one process.

## How well pods are placed

{quality}

What `cpupool simulate` tells of {traces} random traces of {pods} pods each. The load is the
share of the pool that pods would hold if none were refused. A pod requests 1, 2, 4, ... cores, up
to half of the pool, each size half as often as the one before it. *pool* is the pool's own policy;
*first-fit* takes the lowest free ids, as a plugin without an opinion leaves it to the kubelet;
*kubelet-packed* is the kubelet's static CPU manager policy.

* **refused**: pods that did not get in. One for which too few CPUs are free is refused under every
  policy. Of a pool of full cores a pod is also refused if it is given parts of cores: first-fit
  does that wherever siblings do not have neighbouring ids.
* **on one NUMA node**, **behind one L3 cache**: of the containers that could lie in one if the pool
  were empty, those that do.
* **fragmentation**: how scattered the free CPUs are over NUMA nodes, on average over time; 0 is as
  close together as can be (`policies/pools/fragmentation.py`).
* **CPUs in use**: on average over time. Where few are in use because pods are refused, the other
  figures say little.

Where the Topology Manager restricts, it chooses the NUMA nodes before the pool is asked, and the
policies differ in the caches only.

## The CPU manager: a container is created

{creates}

The agent runs on a node of 512 CPUs on which {owners} containers have a CPU of their own by the
policy `static`, and speaks NRI over a real socket. The time is from the request's bytes to the
answer's bytes. Each of {created} new pods gets a CPU of its own, and each answer moves {sharing}
containers that share. Before *StartContainer* is answered, the agent reads the CPUs of every
container. *Idle before*: the agent has nothing else to do; *one after the other*: the runtime asks
again at once, while the agent still looks after the pod before.

## The CPU manager: a pod is planned

{plans}

The Manager decides about a pod with 2 to 16 CPUs, on 512 CPUs with 250 owned ones: {planned}
pods for each row, one after the other. CPU time, as above.

## The CPU manager: busy neighbours of a new owner

{neighbours}

A pod with a CPU of its own starts in a real containerd, {rounds} times, beside {beside} pods that
share all CPUs. The CPUs of these pods are read from the kernel about once a millisecond. The
kubelet's static policy moves such neighbours with its next reconciliation, up to 10 s later. The
other rows are the runtime's own time: from the call of CRI to the container's first instruction.
The start of an owner includes the moves of its neighbours.

## Pods of a shared pool start, one at a time and ten at once

{bursts}

`python -m benchmarks bursts` prints this table. The same pods start in turns in two real
containerds on this machine, one beside an agent and one on a node without a CPU manager:
{pairs} single starts and {bursts_each} bursts for each row. A start is the time from the first call
of CRI to the last pod's first instruction; *on wrong CPUs* is as in
[Enforcement](user/enforcement.md#three-ways). The aim for what `nri` adds is for the median, that
for wrong CPUs for the maximum; what misses it is **bold**.

* *The CPU time of a pod's life* misses its aim. In a life the agent sweeps about seven times, and
  once or twice with `nri`: the cgroups of the sandbox and the container come and go one after
  the other. `python -m benchmarks.lives` says where the time goes. The answers to NRI take
  5 ms, and a call of the runtime over gRPC in Python more than 1 ms.
  [Figures](dev/figures.md#why-a-pod-still-costs-more-than-10-ms) has the parts.
* *What `nri` adds to a burst* is this CPU time: the runtime cannot have the CPUs meanwhile.
* *`cri` has no aim*, and is the last choice. Each change is a process of the runtime, and a new
  container takes two: its CPUs and its quota. The agent makes at most four calls at one time: a
  runtime that makes one change after the other must have made all four before the agent gives up.
* *`cgroup`*: in a burst the runtime, its processes and the agent share the CPUs of the machine, so
  a container also waits for the agent to get a CPU. The process starter makes an application wait
  for its CPUs; `nri` needs no wait.

## The CPU manager: wake-up latency

{wakeups}

![Share of wake-ups that are later than a time, under each policy]({image})

`python -m benchmarks.wakeups` prints this table. A Guaranteed pod with one CPU sleeps for 1 ms,
{waking} times, beside {busy} best-effort pods that never sleep. The latency is the time after the
end of the sleep until the process runs. There are {waking_rounds} rounds, with each policy in turn.
Real processes run in real cgroups, on at most {waking_cpus} CPUs of the machine.

* A CPU of its own is free of other containers, and not of the machine's other programs. Where these
  take much CPU time, they decide the late wake-ups under every policy. [Figures](dev/figures.md)
  has the ranges of several runs on a busy machine.
* Under `none` all pods share these CPUs. Under `static` the waking pod has a CPU of its own. One
  CPU is reserved, and the agent runs there.
* Under `dynamic` the waking pod is also resized in place meanwhile, to 2 CPUs and back to 1, again
  and again. {pause_s:g} s pass after each resize, and the notice is 0 s.
* *Emulated*: a pod that grows needs {waking_cpus} CPUs, two of its own and one for the others.
  Where the machine has two, the third CPU and the cgroups of this row are emulated: the agent
  decides and writes the same, and a process runs on those of its CPUs that are there. So this row
  shows what the agent's work costs the waking process, which keeps its real CPU. It does not show a
  move of the process to the CPU that comes, or from the CPU that goes.

## The CPU manager: neighbours that use the caches

{chase}

![Share of accesses that are slower than a time, alone and with neighbours]({chase_image})

`python -m benchmarks.pointer_chase` prints this table. A Guaranteed pod with one CPU follows a
chain of pointers through {chased} MiB in random order, for {followed} accesses, beside best-effort
pods that copy {copied} MiB again and again. Each time is the mean of {accesses} accesses. There are
{chase_rounds} rounds, with each row in turn. Real processes run in real cgroups, on {chase_cpus}
CPUs of the machine.

* `static` gives the pod a CPU, with the caches that belong to this CPU alone. With two neighbours
  the pod has its CPU all the time, so it makes more accesses in a second than under `none`. With
  one neighbour each pod finds a CPU of its own under `none`, too.
* `static` does not divide the cache and the memory bandwidth that all CPUs share. The neighbours
  take the chain out of this cache under both policies: compare with the row without a neighbour.

## The policy koordinator: an LSR pod arrives

{arrivals}

`python -m benchmarks.koordinator` prints this table. {ls_pods} LS pods, each a container and a
sandbox, run on all CPUs of a node of 512. An LSR pod with 8 CPUs of koord-scheduler arrives and
ends, {arrived} times; the figures are medians. The times begin with the sandbox of the LSR pod, and
with the end of its container. *May run*: the agent has answered StartContainer. A runtime updates
one container after the other, so that {slow_ms} ms for each make five seconds for all.

## The node's topology: pods that a node refuses

{refusals}

Pods are offered to {recorded} recorded nodes, each with pools and pods of its own; each pod to
every node that has enough in sum. *Refused, no filter*: the node refuses the pod. *Refused,
filter*: it refuses a pod that the filter of NodeResourceTopologyMatch lets through, by what the
node publishes.
*In vain*: the filter keeps a pod off a node that would have taken it. The filter is a stand-in by
the documented rules of scheduler-plugins (`tests/topology_match.py`); the kubelet's Topology
Manager is `local/devices.py`, in front of the real Manager.

* With *pods with an init container* the filter sees each container alone. The kubelet reuses the
  devices of an init container for the next one, which ties that container to a NUMA node: the
  filter lets such pods through, and the node refuses some of them. CPUs of `cpuManager` are not
  tied so, and the node refuses none behind the filter.
* *In vain, for pools*: the object has room for one Topology Manager. With `single-numa-node` in
  the pool file's `cpuManager`, the filter keeps the pods of pools on one NUMA node, too, although
  the node would also take them on two.

## The node's topology: the topology reporter

{reporter}

The writes of an hour have {events} events of pods, at most one write in five seconds. A pod counts
twice as it starts: when the kubelet gives it devices, and when it runs. Memory and CPU time are
those of one agent with and without the reporter, as the kernel counts them; the CPU time is for the
start of all pods at once and the 30 seconds after it.

## The resource manager: plugins decide

{plugins}

{admitted} pods come one after the other; each of {serving} plugins is asked for hints and to
allocate. A pod is admitted when the file has the answers; the time that the plugins take to answer
does not count. At rest, the plugins are asked every 3 s for what all containers have.
"""


if __name__ == "__main__":
    main()
