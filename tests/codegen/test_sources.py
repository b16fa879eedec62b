"""The keys of what is kept on disk change with every file that it follows from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from leanconv.codegen import keys
from leanconv.codegen.host import host
from leanconv.codegen.keys import (
    DECIDING,
    EMITTING,
    PACKAGE,
    PLANNING,
    source_files,
    sources_hash,
)

_DECISIONS = ("planner/decisions.py", "planner/found_plans.py", "planner/tuner.py")


def hashed(folders: Sequence[str]) -> set[Path]:
    """The files that decide what is kept."""
    return {PACKAGE / name for name in source_files(PACKAGE, folders)}


def imported(path: Path) -> set[Path]:
    """The files of the package that a file imports, inside functions, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            package, *parts = name.split(".")
            if package == "leanconv":
                found |= _files(parts)
    return found


def _files(parts: list[str]) -> set[Path]:
    """A module's file, and those of the packages around it, which are run before it.

    All but the root's, which imports everything for users.
    """
    packages = [PACKAGE.joinpath(*parts[:depth], "__init__.py") for depth in range(len(parts))][1:]
    ends = [PACKAGE.joinpath(*parts, "__init__.py"), PACKAGE.joinpath(*parts).with_suffix(".py")]
    return {path for path in (*packages, *(ends if parts else ())) if path.exists()}


def reached(begin: Iterable[Path]) -> set[Path]:
    """All files that some files import, and these."""
    found: set[Path] = set()
    pending = list(begin)
    while pending:
        path = pending.pop()
        if path not in found:
            found.add(path)
            pending += imported(path)
    return found


def kernel_files() -> list[Path]:
    """The files that define kernels, and the compiler."""
    files = [path for path in PACKAGE.rglob("*.py") if "(Kernel)" in path.read_text("utf-8")]
    return [*files, PACKAGE / "codegen" / "compiler.py", PACKAGE / "runtime" / "native.py"]


def test_choices_are_kept_by_all_that_decides() -> None:
    needed = reached(PACKAGE / name for name in _DECISIONS)
    assert len(needed) > 150
    assert {path for path in needed if "operators" in path.parts}
    assert needed <= hashed(DECIDING)


def test_objects_are_kept_by_all_that_emits() -> None:
    needed = reached(kernel_files())
    assert len(needed) > 100
    assert needed <= hashed(EMITTING)


def test_snapshots_are_kept_by_all_that_plans() -> None:
    needed = reached([PACKAGE / "api" / "load.py"])
    others = {path for path in needed if "gpu" in path.parts or "measured_error" in path.name}
    assert PACKAGE / "api" / "cpu_backend.py" in needed
    assert needed - others <= hashed(PLANNING)


def test_every_file_on_disk_is_hashed_once() -> None:
    files = list(source_files(PACKAGE, PLANNING))
    assert len(files) == len(set(files))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("units.py", "planner/budget.py", "planner/deep/solver.py", "cli/main.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"NAME = {name!r}\n", encoding="utf-8")
    return tmp_path


def test_any_change_of_a_file_is_another_hash(package: Path) -> None:
    seen = {sources_hash(package, DECIDING)}
    for name in ("units.py", "planner/budget.py", "planner/deep/solver.py"):
        path = package / name
        path.write_text(path.read_text(encoding="utf-8") + "#\n", encoding="utf-8")
        seen.add(sources_hash(package, DECIDING))
    (package / "planner/budget.py").rename(package / "planner/limit.py")
    seen.add(sources_hash(package, DECIDING))
    (package / "planner/limit.py").rename(package / "planner/deep/limit.py")
    seen.add(sources_hash(package, DECIDING))
    (package / "units.py").unlink()
    seen.add(sources_hash(package, DECIDING))
    assert len(seen) == 7
    (package / "cli/main.py").write_text("", encoding="utf-8")
    (package / "planner/readme.txt").write_text("", encoding="utf-8")
    assert sources_hash(package, DECIDING) in seen


def test_what_decides_alone_leaves_objects_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [keys.key_of("k", host()), keys.choice_key("k", host())]
    assert before[0] != before[1]
    with monkeypatch.context() as patched:
        patched.setattr(keys, "choice_hash", lambda: "another version")
        assert keys.key_of("k", host()) == before[0]
        assert keys.choice_key("k", host()) != before[1]
    choices = keys.choice_hash()
    monkeypatch.setattr(keys, "object_hash", lambda: "another version")
    assert keys.choice_hash.__wrapped__() != choices
