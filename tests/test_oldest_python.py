"""What the oldest Python that is promised cannot do, found by any Python: the tests' own files too.

The type checker knows which names of the standard library a version has, but not what a version
refuses as it runs, and it does not read the tests. Ruff, told the oldest version, reads the grammar
of them all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples")
# Whose subclasses take no second base such as Generic before 3.11.
ALONE = {"NamedTuple", "TypedDict"}
# Newer than 3.10. Names of modules, then names that a module got later, then methods.
MODULES = {"tomllib", "wsgiref.types", "asyncio.taskgroups"}
NAMES = {
    "typing": {
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack"),
        *("assert_never", "assert_type", "clear_overloads", "dataclass_transform", "get_overloads"),
        *("reveal_type", "override", "TypeAliasType", "ReadOnly", "TypeIs", "NoDefault"),
    },
    "enum": {
        *("StrEnum", "ReprEnum", "EnumCheck", "FlagBoundary", "EnumType", "verify", "member"),
        *("nonmember", "global_enum", "CONTINUOUS", "NAMED_FLAGS", "UNIQUE"),
    },
    "datetime": {"UTC"},
    "contextlib": {"chdir"},
    "hashlib": {"file_digest"},
    "itertools": {"batched"},
    "math": {"cbrt", "exp2", "sumprod", "fma"},
    "operator": {"call"},
    "asyncio": {"TaskGroup", "Runner", "timeout", "Barrier", "eager_task_factory"},
    "inspect": {"getmembers_static", "markcoroutinefunction", "BufferFlags"},
    "collections.abc": {"Buffer"},
    "copy": {"replace"},
    "os": {"process_cpu_count", "listdrives"},
    "warnings": {"deprecated"},
    "sys": {"exception", "monitoring", "activate_stack_trampoline"},
    "threading": {"setprofile_all_threads", "settrace_all_threads"},
    "logging": {"getLevelNamesMapping", "getHandlerByName", "getHandlerNames"},
    "types": {"get_original_bases", "CapsuleType"},
    "random": {"binomialvariate"},
    "functools": {"Placeholder"},
    "builtins": {
        "ExceptionGroup",
        "BaseExceptionGroup",
        "EncodingWarning",
        "PythonFinalizationError",
    },
}
METHODS = {"add_note", "walk_up", "is_junction", "full_match"}


# A text without any of these words is not read: reading them all takes seconds.
_WORDS = re.compile(
    rf"\b(?:{'|'.join(sorted({*ALONE, *MODULES, *METHODS, *set().union(*NAMES.values())}))})\b"
)


def faults(text: str) -> Iterator[str]:
    """What Python 3.10 cannot do of a module's text, each with its line."""
    if not _WORDS.search(text):
        return
    nodes = list(ast.walk(ast.parse(text, feature_version=(3, 10))))
    modules: dict[str, str] = {}  # by the names that they have here
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in nodes:
        yield from (f"line {node.lineno}: {what}" for what in _faults_of(node, modules))


def _faults_of(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"module {each.name}" for each in names if each.name in MODULES)
        case ast.ImportFrom(module=str(module), names=names):
            found = [each.name for each in names if each.name in NAMES.get(module, ())]
            yield from (f"{module}.{name}" for name in found)
            if module in MODULES:
                yield f"module {module}"
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in modules:
            if attribute in NAMES.get(modules[name], ()):
                yield f"{modules[name]}.{attribute}"
        case ast.Attribute(attr=attribute) if attribute in METHODS:
            yield f"the method {attribute}"
        case ast.Name(id=name) if name in NAMES["builtins"]:
            yield name
        case ast.ClassDef(name=name, bases=[_, _, *_] as bases):
            texts = {re.split(r"[\[(]", ast.unparse(base))[0].split(".")[-1] for base in bases}
            if texts & ALONE:
                yield f"class {name} has another base beside {', '.join(texts & ALONE)}"


def test_the_oldest_is_the_one_that_is_promised() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^(?:requires-python|python_version|target-version) = "(.*)"', text, re.M)[
        :3
    ] == [">=3.10,<3.14", "py310", "3.10"]


def test_nothing_needs_a_newer_python() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 600
    found = [
        f"{path.relative_to(ROOT)}: {fault}" for path in files for fault in faults(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "class A(NamedTuple, Generic[T]): pass",
        "class A(typing.TypedDict, Generic[T]): pass",
        "from typing import Self",
        "import typing as t\nx: t.Self",
        "import tomllib",
        "from datetime import UTC, date",
        "import datetime\ndatetime.UTC",
        "raise ExceptionGroup('', [])",
        "error.add_note('')",
    ],
)
def test_what_is_newer_is_found(text: str) -> None:
    assert len(list(faults(text))) == 1
