"""Who writes which container."""

from __future__ import annotations

from itertools import product

import pytest

from cpupool.core.bandwidth import Bandwidth
from cpupool.core.cgroups import POD_ITSELF, Writer
from cpupool.core.cpuset import CPUSet
from cpupool.core.errors import (
    CgroupNotFound,
    ContainerNotFound,
    HostError,
    RemoteProtocolError,
    RuntimeBusy,
    RuntimeRefused,
    RuntimeUnreachable,
)
from cpupool.core.workloads import ContainerID, RuntimeContainer
from cpupool.enforce.apply import bring
from cpupool.enforce.write_order import Write
from cpupool.enforce.writer_choice import Writers
from cpupool.host.cgroupfs import CgroupVersion
from tests.cgroups import KernelModel
from tests.quotas import QuotaModel
from tests.runtimes import ModelRuntime

ONE = ContainerID("c")
POD = "kubepods/pod1"
PATH = f"{POD}/c"
NESTED = f"{PATH}/nested"
NOT_THERE = ModelRuntime()
NAMED = RuntimeContainer(ONE, "pod1", "ns", "pod", "main")
SANDBOX = RuntimeContainer(ONE, "pod1", "ns", "pod")


def runtime(listed: str | None = None, *, here: bool = True, silent: bool = False) -> ModelRuntime:
    """Make a runtime that has this CPU list for the container; None where it does not know it."""
    lists: dict[str, str] = {} if listed is None else {ONE: listed}
    return ModelRuntime(here=here, lists=lists, silent=silent)


def gone(listed: str | None = None) -> ModelRuntime:
    return runtime(listed, here=False)


def old(listed: str | None = None) -> ModelRuntime:
    """Make one that changes by its plugin can lock up."""
    made = runtime(listed)
    made.may_lock_up = True
    return made


def written(writers: Writers, by: Writer) -> Writers:
    """Return them after one of them has written the container's CPUs."""
    writers.wrote(ONE, by)
    return writers


@pytest.mark.parametrize(
    ("asked", "nri", "cri", "writer"),
    [
        (None, runtime(), runtime(), Writer.NRI),
        (None, old(), runtime(), Writer.NRI),
        (None, gone(), runtime(), Writer.CGROUP),
        (None, gone(), gone(), Writer.CGROUP),
        (Writer.NRI, runtime(), gone(), Writer.NRI),
        (Writer.NRI, gone(), runtime(), Writer.CGROUP),
        (Writer.CRI, None, runtime(), Writer.CRI),
        (Writer.CRI, None, gone(), Writer.CGROUP),
        (Writer.CGROUP, None, runtime(), Writer.CGROUP),
    ],
)
def test_a_container_that_starts_goes_the_way_that_is_asked_for_or_works_best(
    asked: Writer | None, nri: ModelRuntime | None, cri: ModelRuntime, writer: Writer
) -> None:
    assert Writers(asked, nri, cri).node is writer


@pytest.mark.parametrize(
    ("asked", "nri", "cri", "old", "new"),
    [
        pytest.param(None, None, gone(), Writer.CGROUP, Writer.CGROUP, id="no runtime"),
        pytest.param(
            None, None, runtime(""), Writer.CGROUP, Writer.CGROUP, id="a runtime without list"
        ),
        pytest.param(
            None, runtime(""), runtime(""), Writer.CGROUP, Writer.CGROUP, id="older than NRI"
        ),
        pytest.param(None, runtime("2"), gone(), Writer.NRI, Writer.NRI, id="NRI has it"),
        pytest.param(None, runtime("2"), runtime("2"), Writer.NRI, Writer.NRI, id="both have it"),
        pytest.param(None, old("2"), runtime("2"), Writer.CRI, Writer.CRI, id="NRI can lock it up"),
        pytest.param(
            None, old("2"), gone(), Writer.NRI, Writer.NRI, id="it can, and there is no CRI"
        ),
        pytest.param(None, gone("2"), runtime("2"), Writer.CRI, Writer.CRI, id="NRI had it"),
        pytest.param(None, gone(), runtime("2"), Writer.CRI, Writer.CRI, id="NRI is still to come"),
        pytest.param(
            None, runtime(), runtime("2"), Writer.CRI, Writer.CRI, id="NRI does not know it"
        ),
        pytest.param(
            Writer.CGROUP, None, runtime("2"), Writer.CRI, Writer.CRI, id="cgroup, from another"
        ),
        pytest.param(Writer.CGROUP, None, runtime(""), Writer.CGROUP, Writer.CGROUP, id="cgroup"),
        pytest.param(Writer.CRI, None, runtime(""), Writer.CGROUP, Writer.CRI, id="cri"),
        pytest.param(
            Writer.CRI, None, runtime("2"), Writer.CRI, Writer.CRI, id="cri, from another"
        ),
        pytest.param(
            Writer.CRI, None, runtime(), Writer.CGROUP, Writer.CGROUP, id="cri, a sandbox"
        ),
        pytest.param(
            Writer.CRI, None, gone(), Writer.CGROUP, Writer.CGROUP, id="cri that is not there"
        ),
    ],
)
def test_one_of_which_the_runtime_has_the_list_is_written_by_the_runtime(
    asked: Writer | None, nri: ModelRuntime | None, cri: ModelRuntime, old: Writer, new: Writer
) -> None:
    writers = written(Writers(asked, nri, cri), Writer.CGROUP)
    assert [writers.of(ONE, new=late) for late in (False, True)] == [old, new]


def test_no_way_leads_past_a_runtime_that_has_the_list_or_through_one_that_is_not_there() -> None:
    states = [make(listed) for make in (runtime, gone, old) for listed in (None, "", "2")]
    for asked, nri, cri, new in product((None, *Writer), (None, *states), states, (False, True)):
        try:
            writer = written(Writers(asked, nri, cri), Writer.CGROUP).of(ONE, new=new)
        except RuntimeUnreachable:
            assert nri is not None
            assert (nri.here, cri.here, nri.cpu_list(ONE)) == (False, False, "2")
            continue
        listed = {one.cpu_list(ONE) for one in (nri, cri) if one is not None and one.here}
        assert writer is not Writer.CGROUP or "2" not in listed
        assert writer is not Writer.NRI or (nri is not None and nri.here)
        assert writer is not Writer.NRI or nri is None or not (nri.may_lock_up and cri.here)
        assert writer is not Writer.CRI or cri.here


def test_a_runtime_that_nri_can_lock_up_is_waited_for_once_it_has_answered_calls() -> None:
    cri = runtime("2")
    writers = Writers(None, old("2"), cri)
    assert writers.of(ONE, new=True) is Writer.CRI
    written(writers, Writer.CRI)
    cri.here = False
    for _ in range(2):
        assert writers.unasked(ONE, new=True) is None
        with pytest.raises(RuntimeUnreachable):
            writers.of(ONE, new=True)
    cri.here = True
    assert writers.of(ONE, new=True) is Writer.CRI


def test_it_is_reported_once_that_a_runtime_can_lock_up(caplog: pytest.LogCaptureFixture) -> None:
    writers = Writers(None, old("2"), gone())
    for _ in range(2):
        writers.of(ONE, new=True)
    (told,) = caplog.messages
    assert "mount the folder of its CRI socket" in told


def test_a_runtime_that_has_the_list_and_is_gone_is_waited_for() -> None:
    with pytest.raises(RuntimeUnreachable, match=r"container c: .* start the runtime") as raised:
        Writers(None, gone("2"), gone()).of(ONE, new=True)
    assert raised.value.container == ONE


def test_a_runtime_that_does_not_answer_leaves_the_container_as_it_is() -> None:
    with pytest.raises(RemoteProtocolError):
        Writers(None, None, runtime("2", silent=True)).of(ONE, new=False)


@pytest.mark.parametrize("asked", [None, Writer.CGROUP])
def test_the_runtime_is_not_asked_about_a_container_that_nothing_has_written(
    asked: Writer | None,
) -> None:
    assert Writers(asked, None, runtime(silent=True)).of(ONE, new=True) is Writer.CGROUP


@pytest.mark.parametrize(
    ("nri", "cri", "new", "known", "writer"),
    [
        pytest.param(None, runtime(silent=True), True, NAMED, Writer.CRI, id="named"),
        pytest.param(None, runtime(silent=True), True, None, None, id="perhaps a sandbox"),
        pytest.param(None, runtime(silent=True), False, NAMED, None, id="older than the agent"),
        pytest.param(None, gone(), True, NAMED, None, id="the runtime has gone"),
        pytest.param(runtime("2"), runtime("2"), True, NAMED, Writer.NRI, id="of the plugin"),
    ],
)
def test_by_calls_the_runtime_is_not_asked_about_a_new_container_that_it_has_named(
    nri: ModelRuntime | None,
    cri: ModelRuntime,
    new: bool,
    known: RuntimeContainer | None,
    writer: Writer | None,
) -> None:
    writers = Writers(Writer.CRI, nri, cri)
    assert writers.unasked(ONE, new=new, known=known) is writer


@pytest.mark.parametrize(
    ("container", "known"),
    [
        pytest.param(ONE, SANDBOX, id="a sandbox"),
        pytest.param(POD_ITSELF, None, id="a pod's own cgroup"),
    ],
)
def test_what_no_runtime_changes_is_written_directly(
    container: ContainerID, known: RuntimeContainer | None
) -> None:
    writers = Writers(Writer.CRI, runtime("2"), runtime("2"))
    assert writers.unasked(container, new=True, known=known) is Writer.CGROUP


@pytest.mark.parametrize("before", [Writer.CRI, Writer.NRI])
def test_one_that_was_written_by_the_runtime_is_never_written_directly(before: Writer) -> None:
    there = written(Writers(None, runtime(), runtime("2")), before)
    assert there.of(ONE, new=True) is Writer.CRI
    with pytest.raises(RuntimeUnreachable):
        written(Writers(None, gone(), gone("2")), before).of(ONE, new=True)


def test_a_container_starts_as_long_as_nri_says_so() -> None:
    nri = ModelRuntime(begun={ONE})
    assert Writers(None, nri, NOT_THERE).starting(ONE)
    assert not Writers(None, nri, NOT_THERE).starting(ContainerID("other"))
    assert not Writers(None, None, NOT_THERE).starting(ONE)


class TestThrough:
    """A container on CPU 0 with a nested cgroup, in a pod that is to be widened."""

    def kernel(
        self, runtime: ModelRuntime, version: CgroupVersion = CgroupVersion.V1
    ) -> KernelModel:
        kernel = KernelModel(version, {"kubepods": "0-7", POD: "0-1", PATH: "0", NESTED: "0"})
        runtime.written = lambda _, cpus: kernel.sets.update({PATH: cpus})
        return kernel

    @pytest.mark.parametrize("writer", [Writer.NRI, Writer.CRI])
    def test_the_runtime_writes_the_container_and_nothing_else(self, writer: Writer) -> None:
        nri, cri = runtime("0"), runtime("0")
        writing, idle = (nri, cri) if writer is Writer.NRI else (cri, nri)
        kernel = self.kernel(writing)

        tree = Writers(None, nri, cri).through(writer, kernel, PATH, ONE)
        bring(tree, PATH, CPUSet.of(4))

        assert {path: str(cpus) for path, cpus in kernel.sets.items()} == {
            "kubepods": "0-7",
            POD: "0-1,4",
            PATH: "4",
            NESTED: "4",
        }
        assert PATH not in {write.path for write in kernel.writes}
        assert (writing.lists, idle.lists) == ({ONE: "4"}, {ONE: "0"})

    def test_the_runtimes_question_about_a_call_is_expected(self) -> None:
        nri, cri = old("0"), runtime("0")
        kernel = self.kernel(cri)
        seen: list[dict[str, str]] = []
        cri.written = lambda *_: seen.append(dict(nri.expected))
        Writers(None, nri, cri).through(Writer.CRI, kernel, PATH, ONE).write(PATH, CPUSet.of(4))
        assert (seen, nri.expected) == ([{ONE: "4"}], {})

    def test_a_runtime_that_waits_for_an_answer_is_not_called(self) -> None:
        nri, cri = old("0"), runtime("0")
        nri.busy = True
        tree = Writers(None, nri, cri).through(Writer.CRI, self.kernel(cri), PATH, ONE)
        with pytest.raises(RuntimeBusy):
            tree.write(PATH, CPUSet.of(4))
        assert cri.lists == {ONE: "0"}

    def test_the_cgroup_way_writes_everything_itself(self) -> None:
        nri, cri = runtime("0"), runtime("0")
        kernel = self.kernel(nri)
        assert Writers(None, nri, cri).through(Writer.CGROUP, kernel, PATH, ONE) is kernel

    def test_a_container_that_the_runtime_has_no_longer_is_gone(self) -> None:
        cri = runtime()
        kernel = self.kernel(cri)
        tree = Writers(None, None, cri).through(Writer.CRI, kernel, PATH, ONE)
        with pytest.raises(CgroupNotFound) as raised:
            tree.write(PATH, CPUSet.of(1))
        assert raised.value.path == PATH

    def test_a_refusal_leaves_nothing_behind(self) -> None:
        cri = runtime("0")
        kernel = self.kernel(cri)
        cri.refusing = "no"
        tree = Writers(None, None, cri).through(Writer.CRI, kernel, PATH, ONE)
        with pytest.raises(RuntimeRefused):
            bring(tree, PATH, CPUSet.of(4))
        assert str(kernel.sets[POD]) == "0-1"

    def test_a_refusal_to_take_back_does_not_keep_the_rest_from_being_taken_back(self) -> None:
        cri = runtime("0")
        kernel = self.kernel(cri, CgroupVersion.V2)
        set_path = cri.written

        def then_refuse(container: ContainerID, cpus: CPUSet) -> None:
            set_path(container, cpus)
            kernel.refusing.add(NESTED)
            cri.refusing = "no"

        cri.written = then_refuse
        tree = Writers(None, None, cri).through(Writer.CRI, kernel, PATH, ONE)
        with pytest.raises(HostError):
            bring(tree, PATH, CPUSet.of(4))
        assert Write(POD, CPUSet.of(0, 1)) in kernel.writes


def ended(container: ContainerID, _: Bandwidth) -> None:
    raise ContainerNotFound(container)


class TestLimit:
    def kernel(self) -> QuotaModel:
        return QuotaModel({POD: (-1, 100_000), PATH: (-1, 100_000)})

    @pytest.mark.parametrize(
        ("nri", "cri", "writer"),
        [
            (runtime("0"), runtime("0"), Writer.NRI),
            (old("0"), runtime("0"), Writer.CRI),
            (gone("0"), runtime("0"), Writer.CRI),
            (runtime(""), runtime("0"), Writer.CRI),
        ],
    )
    def test_who_sets_the_cpus_sets_the_quota(
        self, nri: ModelRuntime, cri: ModelRuntime, writer: Writer
    ) -> None:
        limited: list[tuple[Writer, Bandwidth]] = []
        nri.limited = lambda _, bandwidth: limited.append((Writer.NRI, bandwidth))
        cri.limited = lambda _, bandwidth: limited.append((Writer.CRI, bandwidth))
        kernel = self.kernel()
        assert Writers(None, nri, cri).limit(kernel, PATH, ONE, Bandwidth(5_000)) is writer
        assert (limited, kernel.writes) == ([(writer, Bandwidth(5_000))], [])

    def test_the_runtime_is_not_asked_again_who_set_the_cpus(self) -> None:
        cri = runtime("0", silent=True)
        limited: list[Bandwidth] = []
        cri.limited = lambda _, bandwidth: limited.append(bandwidth)
        kernel, writers = self.kernel(), Writers(None, runtime(), cri)
        for writer in (Writer.CGROUP, Writer.CRI):
            written(writers, writer)
            assert writers.limit(kernel, PATH, ONE, Bandwidth(5_000)) is writer
        assert (len(kernel.writes), limited) == (1, [Bandwidth(5_000)])

        writers.forget(ONE)
        with pytest.raises(RemoteProtocolError):
            writers.limit(kernel, PATH, ONE, Bandwidth(5_000))

    def test_a_container_of_the_plugin_is_its_again_after_a_start_has_waited(self) -> None:
        writers = written(Writers(None, runtime("0"), runtime("0")), Writer.CGROUP)
        assert writers.limit(self.kernel(), PATH, ONE, Bandwidth(5_000)) is Writer.NRI

    def test_where_the_runtime_has_no_list_the_cgroup_is_written(self) -> None:
        kernel = self.kernel()
        writer = Writers(None, runtime(), runtime("")).limit(kernel, PATH, ONE, Bandwidth(5_000))
        assert writer is Writer.CGROUP
        assert kernel.given[PATH] == Bandwidth(5_000)

    def test_a_container_that_the_runtime_has_no_longer_is_gone(self) -> None:
        nri = runtime("0")
        nri.limited = ended
        with pytest.raises(CgroupNotFound) as raised:
            Writers(None, nri, NOT_THERE).limit(self.kernel(), PATH, ONE, Bandwidth())
        assert raised.value.path == PATH


def test_while_a_start_waits_cpupool_writes_everything() -> None:
    nri = runtime("0-3")
    writers = Writers(None, nri, runtime("0-3"))
    assert writers.of(ONE, new=True) is Writer.NRI
    nri.delays = True
    assert written(writers, Writer.NRI).unasked(ONE, new=True) is Writer.CGROUP
    assert written(writers, Writer.CRI).of(ONE, new=False) is Writer.CGROUP
    nri.delays = False
    assert written(writers, Writer.CGROUP).of(ONE, new=True) is Writer.NRI
