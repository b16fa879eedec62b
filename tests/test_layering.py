"""The folders' order, read from the imports: no edge but those below, no circle, who uses what.

A folder is a sub-package of leanconv or a module that lies directly in it (`errors`, `settings`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "leanconv"

# Each folder may import those named here and what these may import, and nothing else of leanconv.
ARROWS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "types": ("errors", "records"),
    "units": ("errors",),
    "canonical": ("records",),
    "records": (),
    "forks": (),
    "collector": (),
    "interrupts": ("errors",),
    "lazy_imports": ("errors", "forks"),
    "progress": ("errors", "records"),
    "files": ("errors", "records"),
    "settings": ("errors", "units", "records"),
    "symbolic": ("settings",),
    "spec": ("files", "settings", "canonical", "types", "symbolic"),
    "half_arrays": ("types",),
    "winograd": ("errors", "types", "records"),
    "reference": ("spec", "winograd"),
    "target": ("spec", "lazy_imports"),
    "codegen": ("target", "progress", "forks", "half_arrays", "interrupts"),
    "graph": ("spec", "half_arrays", "interrupts"),
    "kernels": ("codegen", "graph"),
    "algorithms": ("kernels", "winograd"),
    "operators": ("algorithms",),
    "runtime": ("codegen",),
    "planner": ("operators", "runtime"),
    "gpu": ("planner",),
    "api": ("gpu", "collector"),
    "quantizer": ("api",),
    "images": ("api",),
    "": ("quantizer", "images", "lazy_imports", "collector"),  # leanconv/__init__.py
    "onnxruntime": ("",),
    "pages": ("units",),
    "server": ("", "pages"),
    "kserve": ("server",),
    "dask": ("",),
    "ray": ("",),
    "torch": ("",),
    "cli": ("", "reference", "server"),
    "__main__": ("cli",),
}
# Inside `algorithms`, each method may import those named here; what is no method (the problem, the
# table of algorithms, the choice among them) may be imported by all of them if it imports none.
METHOD_ARROWS: dict[str, tuple[str, ...]] = {
    "common": (),
    "naive": ("common",),
    "direct": ("common",),
    "planar": ("common",),
    "sparse": ("common", "planar"),
    "separable": ("common", "planar"),
    "depthwise": ("common",),
    "fft": ("common",),
    "col2im": ("common",),
    "amx": ("common",),
    "unfold": ("common", "direct", "naive", "planar"),
    "winograd": ("common", "direct"),
    "fused": ("common", "direct", "depthwise"),
    "weight_gradient": ("common", "direct", "naive", "depthwise", "planar", "unfold", "winograd"),
}
# What stands beside the compiler uses its public names, `api`, what reads and writes files, and
# what lies lowest. What else of the inside an annex imports stands here, with the reason.
ANNEXES = (
    *("quantizer", "onnxruntime", "pages", "server", "kserve", "images", "dask", "ray", "torch"),
)
DOOR = re.compile(
    r"leanconv\.(\w+|(api|types|errors|units|records|progress|files|settings|lazy_imports|forks)\..*"
    r"|interrupts\..*|pages\..*|server\..*|runtime\.locks\..*"
    r"|graph\.(ir|wire|limits|network_inputs|file_\w+|onnx_\w+)(\..*)?)"
)
INSIDE: dict[str, str] = {
    "quantizer planner.budget": "plans files that differ in precision, without compiling",
    "quantizer planner.node_costs": "whose nodes that files have in common are evaluated once",
    "quantizer planner.solver": "chooses precisions as plans choose formats",
    "quantizer operators.operator": "the accuracy of a plan, for which its costs are kept",
    "quantizer graph.convert": "what the operations of a file are",
    "quantizer graph.edit": "whether a constant varies along the channels alone",
    "quantizer graph.ops": "what operations do to channels; what engines answer that saturate",
    "server graph.ops.base": "how many axes a tensor may have",
    "server runtime.memory": "what a compiled library takes of memory, beside plans",
    "onnxruntime graph.convert": "which operations of a file leanconv has",
    "dask planner.image_tiles.windows": "windows of an image, which workers compute",
    "dask planner.decisions": "choices that all workers take",
    "dask runtime.calibration": "the machine that plans are for",
    "ray graph.fields": "whether rows of a batch are computed apart",
    "ray planner.graph_planner": "a plan's bytes and time",
    "ray target": "the machine that plans are for",
    "torch runtime.memory": "the memory that plans of many layers share",
    "torch spec": "the arguments of convolutions",
}
# Modules from outside that one folder alone may import.
ONLY_IN: dict[str, str] = {
    "llvmlite": "codegen",
    "triton": "gpu",
    "rich": "cli",
    "PIL": "cli",
    "zarr": "images",
    "tifffile": "images",
    "onnxruntime": "cli",
    "openvino": "cli",
    "ai_edge_litert": "cli",
    "flatbuffers": "cli",
    "starlette": "server",
    "uvicorn": "server",
    "prometheus_client": "server",
    "kserve": "kserve",
    "dask": "dask",
    "ray": "ray",
    "torch": "torch",
}
_LATE = re.compile(r"leanconv(\.\w+)+")
BASE = {"numpy", "llvmlite", "rich"}
STANDARD_LIBRARY_ONLY = (
    "errors",
    "types",
    "units",
    "canonical",
    "records",
    "forks",
    "collector",
    "lazy_imports",
    "symbolic",
    "progress",
    "files",
    "settings",
    "spec",
    "winograd",
)


@dataclass(frozen=True)
class Import:
    """One import statement: where it stands and the module that it names, in full."""

    file: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(PACKAGE)}:{self.line} imports {self.module}"


def folder_of_file(file: Path) -> str:
    """The folder that a file belongs to; `""` is the package itself."""
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def folder_of_module(module: str) -> str | None:
    """The folder of an imported module of leanconv; None for modules from outside."""
    name, _, rest = module.partition(".")
    if name != "leanconv":
        return None
    first = rest.split(".")[0]
    known = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists()
    return first if first and known else ""


def imports_of(file: Path, source: str) -> Iterator[Import]:
    """Every import of a file, those inside functions included, relative ones made absolute.

    So does a name of ours in quotes where `leanconv.lazy_imports` imports it.
    """
    imports_late = "import lazy_imports" in source or "leanconv.lazy_imports import" in source
    package = ("leanconv", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(source, str(file))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif imports_late and isinstance(node, ast.Constant) and _LATE.fullmatch(str(node.value)):
            yield Import(file, node.lineno, str(node.value))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}")


def sources() -> list[tuple[Path, str]]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20, f"only {len(files)} files under {PACKAGE}: is this the right folder?"
    return [(file, file.read_text(encoding="utf-8")) for file in files]


SOURCES = sources()


@cache
def imports() -> list[Import]:
    """Every import of the package, found by the first test that asks."""
    return [i for file, source in SOURCES for i in imports_of(file, source)]


def reachable(folder: str) -> set[str]:
    """Everything that a folder may import: its arrows, followed to the end."""
    found: set[str] = set()
    waiting = list(ARROWS[folder])
    while waiting:
        arrow = waiting.pop()
        if arrow not in found:
            found.add(arrow)
            waiting += ARROWS[arrow]
    return found


def edge_violations(imports: list[Import]) -> list[str]:
    """The imports along which no arrow points."""
    found = []
    for i in imports:
        target = folder_of_module(i.module)
        folder = folder_of_file(i.file)
        if target is not None and target != folder and target not in reachable(folder):
            found.append(f"{i}: {folder or 'leanconv'} may not import {target or 'leanconv'}")
    return found


def door_violations(imports: list[Import]) -> list[str]:
    """The imports by annexes that neither go through the door nor stand in `INSIDE`."""
    found = []
    for i in imports:
        folder = folder_of_file(i.file)
        free = folder not in ANNEXES or not i.module.startswith("leanconv.")
        free = free or i.module.startswith(f"leanconv.{folder}.") or DOOR.fullmatch(i.module)
        if not free and not any(_is_inside(entry, folder, i.module) for entry in INSIDE):
            found.append(f"{i}: an annex, see INSIDE")
    return found


def _is_inside(entry: str, folder: str, module: str) -> bool:
    annex, inside = entry.split()
    return annex == folder and f"{module}.".startswith(f"leanconv.{inside}.")


def test_who_uses_the_package_from_outside_is_an_annex() -> None:
    users = {folder for folder, below in ARROWS.items() if {"", "api"} & {*below}}
    assert users - {"", "cli"} <= {*ANNEXES}


def method_of(module: str) -> str | None:
    """The method of `algorithms` that a module belongs to; None for all other modules."""
    parts = module.split(".")
    found = parts[2] if parts[:2] == ["leanconv", "algorithms"] and len(parts) > 2 else None
    return found if found in METHOD_ARROWS else None


def method_violations(imports: list[Import]) -> list[str]:
    """The imports of one method by another along which no arrow points."""
    found = []
    for i in imports:
        inside = ("leanconv", *i.file.relative_to(PACKAGE).with_suffix("").parts)
        method, target = method_of(".".join(inside)), method_of(i.module)
        if method and target and target not in (method, *METHOD_ARROWS[method]):
            found.append(f"{i}: {method} may not import {target}")
    return found


def module_cycle(imports: list[Import], files: list[Path]) -> list[str]:
    """Modules that import one another in a circle; empty if none do."""
    names = {}
    for file in files:
        parts = ["leanconv", *file.relative_to(PACKAGE).with_suffix("").parts]
        names[file] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    modules = set(names.values())
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for i in imports:
        target = i.module if i.module in modules else i.module.rpartition(".")[0]
        if target in modules and target != names[i.file]:
            graph[names[i.file]].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def environment_uses(source: str) -> list[int]:
    """Lines that read or change environment variables."""
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    if not any(name in source for name in names):
        return []
    tree = ast.parse(source)
    attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in names]
    imported = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom)
        and n.module == "os"
        and any(a.name in names for a in n.names)
    ]
    return [n.lineno for n in attributes if _is_os(n.value)] + [n.lineno for n in imported]


def _is_os(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "os"


def prints(source: str) -> list[int]:
    """Lines that call `print` or write to a standard stream."""
    lines: list[int] = []
    if not any(name in source for name in ("print", "stdout", "stderr")):
        return lines
    for node in ast.walk(ast.parse(source)):
        is_print = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        )
        is_stream = (
            isinstance(node, ast.Attribute)
            and node.attr in ("stdout", "stderr")
            and isinstance(node.value, ast.Name)
            and node.value.id == "sys"
        )
        if is_print or is_stream:
            lines.append(node.lineno)
    return lines


def test_every_folder_has_its_place() -> None:
    folders = {folder_of_file(file) for file, _ in SOURCES}
    assert folders <= ARROWS.keys(), "a new folder needs its arrows in this test and in the docs"


def test_arrows_themselves_make_no_circle() -> None:
    TopologicalSorter(ARROWS).prepare()


def test_imports_follow_the_arrows() -> None:
    assert edge_violations(imports()) == []


def test_annexes_come_in_by_the_door() -> None:
    assert door_violations(imports()) == []
    used = [(folder_of_file(i.file), i.module) for i in imports()]
    assert [e for e in INSIDE if not any(_is_inside(e, *each) for each in used)] == []
    wrong = Import(PACKAGE / "ray" / "predictor.py", 1, "leanconv.codegen.compiler.load")
    assert len(door_violations([wrong])) == 1


def test_no_module_takes_part_in_a_circle() -> None:
    # Imports for the type checker alone, and those inside functions, count like all others.
    assert module_cycle(imports(), [file for file, _ in SOURCES]) == []


def test_methods_of_convolution_follow_their_arrows() -> None:
    inside = (PACKAGE / "algorithms").iterdir()
    folders = {each.name for each in inside if (each / "__init__.py").exists()}
    assert folders | {"naive"} == METHOD_ARROWS.keys()
    assert method_violations(imports()) == []


def test_outside_modules_are_imported_in_one_folder() -> None:
    wrong = [
        f"{i}: only {ONLY_IN[top]} may"
        for i in imports()
        if (top := i.module.split(".")[0]) in ONLY_IN and folder_of_file(i.file) != ONLY_IN[top]
    ]
    assert wrong == []


def test_nothing_but_declared_dependencies_is_imported() -> None:
    allowed = {*sys.stdlib_module_names, *BASE, *ONLY_IN, "leanconv"}
    wrong = [str(i) for i in imports() if i.module.split(".")[0] not in allowed]
    assert wrong == []


@pytest.mark.parametrize("folder", STANDARD_LIBRARY_ONLY)
def test_the_lowest_folders_need_the_standard_library_only(folder: str) -> None:
    allowed = {*sys.stdlib_module_names, "leanconv"}
    wrong = [
        str(i)
        for i in imports()
        if folder_of_file(i.file) == folder and i.module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_only_settings_reads_the_environment() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file, source in SOURCES
        for line in environment_uses(source)
        # A child process is given this process's environment with a variable more.
        if folder_of_file(file) != "settings" and file.parts[-2:] != ("engines", "processes.py")
    ]
    assert wrong == []


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file, source in SOURCES
        for line in prints(source)
        if folder_of_file(file) != "cli"
    ]
    assert wrong == []


# -- the checks themselves are checked: each must see what it is there for --------------------


def test_a_wrong_edge_is_seen() -> None:
    file = PACKAGE / "spec" / "bad.py"
    for source in (
        "from leanconv.codegen.emitter import Emitter",
        "from leanconv import codegen",
        "from .. import codegen",
        "from ..codegen import emitter",
        "def f():\n    import leanconv.codegen",
    ):
        assert len(edge_violations(list(imports_of(file, source)))) == 1, source
    assert edge_violations(list(imports_of(file, "from ..errors import SpecError"))) == []
    graph = PACKAGE / "graph" / "bad.py"
    assert len(edge_violations(list(imports_of(graph, "import leanconv.codegen.cache")))) == 1
    own = PACKAGE / "runtime" / "bad.py"
    assert len(edge_violations(list(imports_of(own, "import leanconv")))) == 1


def test_a_circle_is_seen() -> None:
    a, b = PACKAGE / "spec" / "a.py", PACKAGE / "spec" / "b.py"
    imports = [
        *imports_of(a, "from leanconv.spec.b import x"),
        *imports_of(b, "from leanconv.spec import a"),
    ]
    assert set(module_cycle(imports, [a, b])) == {"leanconv.spec.a", "leanconv.spec.b"}
    assert module_cycle(imports[:1], [a, b]) == []


def test_a_wrong_edge_between_methods_is_seen() -> None:
    file = PACKAGE / "algorithms" / "direct" / "bad.py"
    for source in (
        "from leanconv.algorithms.fft.layout import FftLayout",
        "from ..fft import layout",
        "def f():\n    from leanconv.algorithms.naive import NAIVE",
    ):
        assert len(method_violations(list(imports_of(file, source)))) == 1, source
    fine = "from leanconv.algorithms.common.conv import Taps\nfrom ..problem import Problem"
    assert method_violations(list(imports_of(file, fine))) == []


def test_environment_and_prints_are_seen() -> None:
    assert environment_uses("import os\nx = os.environ['A']") == [2]
    assert environment_uses("import os\nx = os.getenv('A')") == [2]
    assert environment_uses("from os import environ") == [1]
    assert environment_uses("import os\nx = os.cpu_count()") == []
    assert prints("print(1)\nimport sys\nsys.stderr.write('x')") == [1, 3]
    assert prints("self.print(1)") == []
