import pytest

from cpupool.core.cgroups import CgroupNode
from cpupool.core.cpuset import CPUSet
from cpupool.enforce.write_order import plan


def node(path: str, cpus: str, *children: CgroupNode) -> CgroupNode:
    return CgroupNode(path, CPUSet.parse(cpus), children)


ROOMY = (node("kubepods", "0-7"), node("kubepods/pod", "0-7"))


@pytest.mark.parametrize(
    ("ancestors", "container", "want", "steps"),
    [
        pytest.param(ROOMY, node("c", "2-3"), "2-3", [], id="nothing differs: nothing is written"),
        pytest.param(ROOMY, node("c", "0-7"), "2-3", ["c=2-3"], id="a lone container is narrowed"),
        pytest.param(ROOMY, node("c", "2"), "2-3", ["c=2-3"], id="a lone container is widened"),
        pytest.param(
            ROOMY, node("c", ""), "2-3", ["c=2-3"], id="a container that inherits gets its own set"
        ),
        pytest.param(
            (node("kubepods", "0-3"), node("kubepods/pod", "0-1")),
            node("c", "0-1"),
            "4",
            ["kubepods=0-4", "kubepods/pod=0-1,4", "c=4"],
            id="ancestors are widened from the root down, and keep what they had",
        ),
        pytest.param(
            (node("kubepods", "0-7"), node("kubepods/pod", "")),
            node("c", "0-1"),
            "4",
            ["c=4"],
            id="an ancestor that inherits is left alone",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-7", node("c/n", "0-7", node("c/n/m", "0-7"))),
            "2-3",
            ["c/n/m=2-3", "c/n=2-3", "c=2-3"],
            id="sets are narrowed from the leaves up",
        ),
        pytest.param(
            ROOMY,
            node("c", "2", node("c/n", "2", node("c/n/m", "2"))),
            "2-3",
            ["c=2-3", "c/n=2-3", "c/n/m=2-3"],
            id="sets are widened from the root down",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-1", node("c/n", "0-1")),
            "4-5",
            ["c=0-1,4-5", "c/n=4-5", "c=4-5"],
            id="a move between sets that do not meet goes through both",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-3", node("c/n", "2")),
            "2-3",
            ["c=2-3"],
            id="a nested cgroup that is narrower and within stays",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-3", node("c/n", "1-2")),
            "2-3",
            ["c/n=2", "c=2-3"],
            id="a nested cgroup that is narrower keeps what of it is left",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-3", node("c/n", "0")),
            "2-3",
            ["c/n=2-3", "c=2-3"],
            id="a nested cgroup of which nothing is left takes the container's set",
        ),
        pytest.param(
            ROOMY,
            node("c", "0-3", node("c/n", "")),
            "2-3",
            ["c=2-3"],
            id="a nested cgroup without a set gets none",
        ),
    ],
)
def test_a_plan_is(
    ancestors: tuple[CgroupNode, ...], container: CgroupNode, want: str, steps: list[str]
) -> None:
    made = plan(ancestors, container, CPUSet.parse(want))
    assert [f"{step.path}={step.cpus}" for step in made] == steps


def test_nested_cgroups_follow_from_a_set_before_the_present_one() -> None:
    behind = node("c/n", "0", node("c/n/m", "0"))
    made = plan(ROOMY, node("c", "0-1", behind, node("c/o", "1")), CPUSet.of(0, 1), CPUSet.of(0))
    assert [f"{step.path}={step.cpus}" for step in made] == ["c/n=0-1", "c/n/m=0-1"]


def test_an_empty_set_is_never_planned() -> None:
    with pytest.raises(ValueError, match="c: a container needs a CPU"):
        plan(ROOMY, node("c", "0-1"), CPUSet())
