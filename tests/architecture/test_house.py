"""What `make house` counts: on a small package, and that the real one has no arrow upwards."""

from __future__ import annotations

import io
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cpupool.core import visible
from cpupool.core.cpuset import CPUSet
from tests.waiting import DEADLINE_S
from tools.house import draw
from tools.survey import Arrow, Room, Sized, arrows, circles, layers_of, survey
from tools.walks import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.survey import Survey

ROOT = Path(__file__).parents[2]
LAYERS = (["top"], ["policies", "qrm"], ["core"])
LONG = ", ".join(f"a{number}" for number in range(10))
FILES = {
    "__init__.py": "",
    "api/made_pb2.py": "KOORD = 1\n",
    "core/__init__.py": "",
    "core/cpu_manager.py": """\
        from typing import Final
        NONE: Final = "none"
        QRM: Final = "qrm"
    """,
    "core/value.py": "import cottage.qrm.door\n",
    "policies/__init__.py": "",
    "policies/qrm/__init__.py": "",
    "policies/qrm/policy.py": """\
        import cottage.qrm.door
        from cottage.core.cpu_manager import QRM
        class QRMPolicy:
            name = QRM
        def of(name): return name == QRM
    """,
    "qrm/__init__.py": "",
    "qrm/door.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING: import cottage.qrm.hall\n",
    "qrm/hall.py": "import cottage.qrm.door  # Katalyst\n",
    "top/__init__.py": "",
    "top/asks.py": """\
        from cottage.core import cpu_manager
        from cottage.core.cpu_manager import NONE, QRM as OTHERS
        from cottage.policies.qrm.policy import QRMPolicy
        def asks(policy, config):
            a = policy == cpu_manager.QRM
            b = policy in (OTHERS, "x")
            c = config.cpu_manager_policy == NONE
            d = isinstance(policy, QRMPolicy)
            e = {"x": OTHERS}
            return a, b, c, d, e, {OTHERS: 1}
        def matches(policy):
            match policy:
                case cpu_manager.NONE:
                    return 1
    """,
    "top/koordinator.py": "# Koordinator's\n",
    "top/other.py": "import cottage.top.ring\nKEY = 'koordinator.sh'\n",
    "top/ring.py": "import cottage.top.other\n",
    "top/sized.py": f"""\
        from dataclasses import dataclass
        class Large:
            def __init__(self, {LONG}): pass
        @dataclass
        class Small:
            one: int
        @dataclass(frozen=True)
        class Value:
            one: int
    """,
}


@pytest.fixture(scope="module")
def cottage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    package = tmp_path_factory.mktemp("house") / "cottage"
    for name, text in FILES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package.parent)
        yield survey(package, LAYERS)


def test_rooms_have_the_modules_and_lines_of_their_own(cottage: Survey) -> None:
    assert cottage.rooms == [
        Room("core", 2, 4),
        Room("policies/qrm", 1, 5),
        Room("qrm", 2, 3),
        Room("top", 5, 27),
    ]


def test_an_arrow_against_the_layers_or_within_one_is_upward(cottage: Survey) -> None:
    assert cottage.layers == ["top", "policies", "qrm", "core"]
    assert cottage.arrows == [
        Arrow("core", "qrm", 1, upward=True),
        Arrow("policies", "core", 1, upward=False),
        Arrow("policies", "qrm", 1, upward=True),
        Arrow("top", "core", 1, upward=False),
        Arrow("top", "policies", 1, upward=False),
    ]
    assert cottage.upward == [cottage.arrows[0], cottage.arrows[2]]


def test_modules_that_import_each_other_are_a_circle_unless_for_types(cottage: Survey) -> None:
    assert cottage.circles == [["cottage.top.other", "cottage.top.ring"]]


def test_the_largest_come_first(cottage: Survey) -> None:
    assert cottage.modules[0] == Sized("top/asks.py", 14)
    assert cottage.classes[:2] == [
        Sized("top/sized.py::Small", 3),
        Sized("top/sized.py::Value", 3),
    ]


def test_plain_values_have_no_constructor(cottage: Survey) -> None:
    assert cottage.constructors == [
        Sized("top/sized.py::Large", 10),
        Sized("top/sized.py::Small", 1),
    ]
    assert cottage.long_constructors == cottage.constructors[:1]


def test_words_count_outside_their_rooms(cottage: Survey) -> None:
    assert cottage.koordinator == ["top/other.py"]
    assert cottage.qrm == ["core/cpu_manager.py", "core/value.py", "top/asks.py"]


def test_a_place_asks_by_name_where_it_compares_or_has_a_table(cottage: Survey) -> None:
    asking = [name.removeprefix("top/asks.py:") for name in cottage.by_name]
    assert asking == ["5", "6", "8", "10", "13"]


def test_what_is_found_is_drawn(cottage: Survey) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(*draw(cottage, {"sweep": ["cpupool.core.cpuset"]}), sep="\n")
    drawn = console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert "Arrows: 5 between rooms; 2 upward, 1 circles" in drawn
    assert "cottage.top.other <-> cottage.top.ring" in drawn
    assert "Constructors: 1 with more than 9 arguments" in drawn
    assert "Policies asked by name: 5" in drawn
    assert "Walk: sweep: 1" in drawn
    assert [line.split()[:3] for line in drawn if line.startswith(" qrm/")] == [["qrm/", "2", "3"]]


def test_a_walk_meets_the_modules_whose_functions_its_own_thread_enters() -> None:
    def work(walks: threading.Event, enter: Callable[[], object]) -> None:
        walks.wait(DEADLINE_S)
        enter()

    tracer, walks = Tracer(), threading.Event()
    with tracer.tracing():
        own = threading.Thread(target=work, args=(walks, partial(visible.line, "x")), name="role")
        other = threading.Thread(target=work, args=(walks, CPUSet.of), name="other")
        own.start()
        other.start()
    with tracer.walk("role") as met:
        walks.set()
        own.join()
        other.join()

    assert met == {"cpupool.core.visible"}


def test_the_house_has_no_arrow_upwards_and_no_circle() -> None:
    drawn = list(arrows("cpupool", layers_of(ROOT / "pyproject.toml")))

    assert drawn
    assert not [arrow for arrow in drawn if arrow.upward]
    assert circles("cpupool") == []
