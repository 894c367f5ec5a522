"""Count the facts that make a package easy or hard to read, for `make house`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grimp

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

MOST_ARGUMENTS: Final = 9
_GENERATED: Final = "api"
_POLICIES: Final = "policies"
_POLICY_NAMES: Final = frozenset({"NONE", "STATIC", "KOORDINATOR", "QRM"})
_OF_THE_KUBELET: Final = re.compile("(cpu_manager|topology_manager|topology|kubelet)_policy")
"""A comparison with one of its settings asks for no policy of ours."""
_KOORDINATOR: Final = re.compile("koord", re.IGNORECASE)
_QRM: Final = re.compile("qrm|katalyst|resource[ _]?plugin|qos resource manager", re.IGNORECASE)
_QRM_ROOMS: Final = ("qrm/", "plugins/", "policies/qrm/")


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of the package.

    Attributes:
        name: its path below the package; empty for the package itself.
        modules: how many it has, without those of its subfolders and without `__init__`.
        lines: what these have.
    """

    name: str
    modules: int
    lines: int


@dataclass(frozen=True, slots=True)
class Arrow:
    """The imports of a top folder, or of a module beside these, from another.

    Attributes:
        importer: the one.
        imported: the other.
        imports: pairs of modules, those for types included.
        upward: whether the layers do not allow it.
    """

    importer: str
    imported: str
    imports: int
    upward: bool


@dataclass(frozen=True, slots=True)
class Sized:
    """Something with a size.

    Attributes:
        name: a module's path, or `path::class`.
        size: its lines, or its arguments.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """A package as a reader meets it; generated code is left out.

    Attributes:
        rooms: by name.
        layers: the top folders and modules from the highest layer to the lowest.
        arrows: between these.
        circles: modules that import each other, imports for types left out.
        modules: largest first.
        classes: largest first, lines with decorators.
        constructors: largest first, by their arguments: an `__init__` without `self`, or the fields
            of a dataclass that it takes; but no plain values: frozen dataclasses and named tuples.
        koordinator: the files with Koordinator's words whose path does not name it.
        qrm: the files with words of the QRM outside its rooms.
        by_name: the places outside `policies/` that ask for a CPU manager policy by its name: a
            comparison with a policy's constant or class, a case of one, a table by them.
    """

    rooms: Sequence[Room]
    layers: Sequence[str]
    arrows: Sequence[Arrow]
    circles: Sequence[Sequence[str]]
    modules: Sequence[Sized]
    classes: Sequence[Sized]
    constructors: Sequence[Sized]
    koordinator: Sequence[str]
    qrm: Sequence[str]
    by_name: Sequence[str]

    @property
    def upward(self) -> Sequence[Arrow]:
        """The arrows that the layers do not allow."""
        return [arrow for arrow in self.arrows if arrow.upward]

    @property
    def long_constructors(self) -> Sequence[Sized]:
        """The constructors with more than `MOST_ARGUMENTS` arguments."""
        return [found for found in self.constructors if found.size > MOST_ARGUMENTS]


def survey(package: Path, layers: Sequence[Collection[str]]) -> Survey:
    """Survey a package.

    Args:
        package: its folder; its name can be imported.
        layers: the top folders and modules, from the highest layer to the lowest; those of one
            layer must not import each other.
    """
    files = {
        path.relative_to(package).as_posix(): path.read_text()
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] != _GENERATED
    }
    trees = {name: ast.parse(text) for name, text in files.items()}
    modules = {name: text for name, text in files.items() if not name.endswith("__init__.py")}
    classes = [
        (f"{name}::{node.name}", node)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return Survey(
        rooms=list(_rooms(modules)),
        layers=[name for layer in layers for name in sorted(layer)],
        arrows=list(arrows(package.name, layers)),
        circles=circles(package.name),
        modules=_largest(Sized(name, _lines(text)) for name, text in modules.items()),
        classes=_largest(Sized(name, _length(node)) for name, node in classes),
        constructors=_largest(
            Sized(name, given) for name, node in classes if (given := _arguments(node))
        ),
        koordinator=[
            name
            for name, text in files.items()
            if not _KOORDINATOR.search(name) and _KOORDINATOR.search(text)
        ],
        qrm=[
            name
            for name, text in files.items()
            if not name.startswith(_QRM_ROOMS) and _QRM.search(text)
        ],
        by_name=[
            f"{name}:{line}"
            for name, tree in trees.items()
            if not name.startswith(f"{_POLICIES}/")
            for line in sorted(_asking_by_name(tree, package.name))
        ],
    )


def layers_of(pyproject: Path) -> list[Collection[str]]:
    """Read the layers of the whole package: those of the import contract `layers`."""
    settings = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]
    (contract,) = (found for found in settings["contracts"] if found["id"] == "layers")
    return [layer.split(" | ") for layer in contract["layers"]]


def arrows(package: str, layers: Sequence[Collection[str]]) -> Iterator[Arrow]:
    """Find the imports among the top folders and modules."""
    level = {name: at for at, layer in enumerate(layers) for name in layer}
    graph = grimp.build_graph(package, cache_dir=None)
    found = Counter(
        (_top(importer), _top(imported))
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )
    for (importer, imported), imports in sorted(found.items()):
        if importer != imported and {importer, imported} <= level.keys():
            yield Arrow(importer, imported, imports, level[importer] >= level[imported])


def circles(package: str) -> list[list[str]]:
    """Find the sets of modules that import each other, imports for types left out."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=True)
    below = {module: graph.find_upstream_modules(module) for module in graph.modules}
    groups = {
        frozenset({module, *(other for other in seen if module in below[other])})
        for module, seen in below.items()
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _rooms(modules: dict[str, str]) -> Iterator[Room]:
    numbers: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for name, text in modules.items():
        room = name.rpartition("/")[0]
        numbers[room] += 1
        lines[room] += _lines(text)
    for room in sorted(numbers):
        yield Room(room, numbers[room], lines[room])


def _top(module: str) -> str:
    """Return the name below the package; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def _lines(text: str) -> int:
    return len(text.splitlines())


def _length(node: ast.ClassDef) -> int:
    first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
    return (node.end_lineno or first) - first + 1


def _largest(found: Iterable[Sized]) -> list[Sized]:
    return sorted(found, key=lambda sized: (-sized.size, sized.name))


def _arguments(node: ast.ClassDef) -> int:
    """Return how many arguments its constructor takes; 0 for a plain value."""
    for own in node.body:
        if isinstance(own, ast.FunctionDef) and own.name == "__init__":
            given = own.args
            return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if any("dataclass" in mark and "frozen=True" not in mark for mark in marks):
        return sum(
            isinstance(own, ast.AnnAssign) and "init=False" not in ast.unparse(own)
            for own in node.body
        )
    return 0


def _asking_by_name(tree: ast.Module, package: str) -> set[int]:
    """Find the lines that ask for a policy by its name."""
    names = _policies_words(tree, package)
    if not names:
        return set()

    def told(node: ast.AST) -> bool:
        return not _OF_THE_KUBELET.search(ast.unparse(node)) and any(
            isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) in names
            for part in ast.walk(node)
        )

    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Compare() if told(node):
                found.add(node.lineno)
            case ast.Dict(keys=keys) if any(key is not None and told(key) for key in keys):
                found.add(node.lineno)
            case ast.MatchValue() | ast.MatchClass() if told(node):
                found.add(node.lineno)
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, kind]) if told(kind):
                found.add(node.lineno)
    return found


def _policies_words(tree: ast.Module, package: str) -> set[str]:
    """Return how a module calls the constants and the classes of policies."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    bound = alias.asname or alias.name
                    if _is_of_policies(module, alias.name, package):
                        found.add(bound)
                    elif f"{module}.{alias.name}" == f"{package}.core.cpu_manager":
                        found |= {f"{bound}.{name}" for name in _POLICY_NAMES}
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                # The module that defines the constants.
                if name in _POLICY_NAMES and isinstance(node.value, ast.Constant):
                    found.add(name)
    return found


def _is_of_policies(module: str, name: str, package: str) -> bool:
    """Return whether a name of a module is a policy's constant, or the class of a policy."""
    if module == f"{package}.core.cpu_manager":
        return name in _POLICY_NAMES
    return re.fullmatch(rf"{package}\.{_POLICIES}\.\w+\.policy", module) is not None
