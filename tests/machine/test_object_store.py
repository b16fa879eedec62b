"""Objects that sessions keep: what finds them, what does not, and how many there are."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from leanconv.errors import OutOfMemoryError
from leanconv.target import Target, preset
from support import object_store

HERE = preset("znver4")
NAMES = "12" * 20, "34" * 20
Compile = Callable[[str, Target], bytes]


class Compiler(ModuleType):
    """In place of `leanconv.codegen.machine_code`: counts what it compiles."""

    def __init__(self, folder: Path, source: Path) -> None:
        super().__init__("code")
        self.__file__, self.seen = str(source), list[str]()
        self.compile_text: Compile = self._compile
        object_store.install(self, folder)

    def require_for_compiling(self, text: str) -> None:
        """There is always room."""

    def _compile(self, text: str, target: Target) -> bytes:
        self.seen.append(text)
        return b"\x7fELF" + text.encode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The sources of a compiler."""
    file = tmp_path / "machine_code.py"
    file.write_text("opt = 2")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "objects"


def test_an_equal_text_is_compiled_once_whatever_its_function_is_called(
    folder: Path, source: Path
) -> None:
    first, second = Compiler(folder, source), Compiler(folder, source)
    texts = [f"define @k{name}() of one" for name in NAMES]
    assert first.compile_text(texts[0], HERE) == b"\x7fELF" + texts[0].encode()
    assert (
        second.compile_text(texts[1], replace(HERE, l2_bytes=7)) == b"\x7fELF" + texts[1].encode()
    )
    assert first.compile_text("define @plain()", HERE) == second.compile_text(
        "define @plain()", HERE
    )
    assert (len(first.seen), len(second.seen)) == (2, 0)


def test_whatever_an_object_depends_on_is_in_its_name(folder: Path, source: Path) -> None:
    compiler = Compiler(folder, source)
    text = f"define @k{NAMES[0]}() of one"
    for target in (HERE, *(replace(HERE, **{name: "x"}) for name in ("cpu", "features", "triple"))):
        compiler.compile_text(text, target)
    compiler.compile_text(f"{text} and another", HERE)
    assert len(compiler.seen) == 5
    source.write_text("opt = 3")
    other = Compiler(folder, source)
    other.compile_text(text, HERE)
    assert len(other.seen) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:40] + b"?" + data[41:], lambda data: b""],
    ids=["cut", "changed", "empty"],
)
def test_a_damaged_object_is_compiled_and_kept_anew(
    folder: Path, source: Path, damage: Callable[[bytes], bytes]
) -> None:
    compiler = Compiler(folder, source)
    whole = compiler.compile_text("define @plain()", HERE)
    (file,) = folder.iterdir()
    kept = file.read_bytes()
    file.write_bytes(damage(kept))
    assert compiler.compile_text("define @plain()", HERE) == whole
    assert (len(compiler.seen), file.read_bytes()) == (2, kept)


def test_an_object_under_the_name_of_another_is_not_run(folder: Path, source: Path) -> None:
    compiler = Compiler(folder, source)
    compiler.compile_text("define @a()", HERE)
    (a,) = folder.iterdir()
    compiler.compile_text("define @b()", HERE)
    (b,) = (file for file in folder.iterdir() if file != a)
    a.write_bytes(b.read_bytes())
    assert compiler.compile_text("define @a()", HERE) == b"\x7fELFdefine @a()"


def test_a_folder_that_others_may_write_holds_nothing(folder: Path, source: Path) -> None:
    compiler = Compiler(folder, source)
    compiler.compile_text("define @plain()", HERE)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert "others may write it" in object_store.why_not(folder)
    compiler.compile_text("define @plain()", HERE)
    assert len(compiler.seen) == 2


def test_llvm_makes_the_code_of_tests_of_the_compiler(
    folder: Path, source: Path, real_compiler: None
) -> None:
    compiler = Compiler(folder, source)
    for _ in range(2):
        compiler.compile_text("define @plain()", HERE)
    assert len(compiler.seen) == 2
    assert not folder.exists()


def test_memory_is_required_as_where_it_is_compiled(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(folder, source)
    compiler.compile_text("define @plain()", HERE)

    def no_room(text: str) -> None:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(compiler, "require_for_compiling", no_room)
    with pytest.raises(OutOfMemoryError, match="no room"):
        compiler.compile_text("define @plain()", HERE)


def test_what_was_not_used_for_longest_leaves_first(folder: Path, source: Path) -> None:
    compiler, days = Compiler(folder, source), 86400
    sizes = {}
    for age in (3, 1, 2):
        before = set(folder.iterdir()) if folder.exists() else set()
        compiler.compile_text(f"define @of_{age}()", HERE)
        (file,) = set(folder.iterdir()) - before
        os.utime(file, (0, time.time() - age * days))
        sizes[age] = file.stat().st_size
    (folder / "mine.txt").write_text("of somebody else")
    unfinished = folder / f"{'ab' * 32}.part12_34"
    unfinished.write_bytes(b"half")
    os.utime(unfinished, (0, time.time() - 2 * days))
    compiler.compile_text("define @of_3()", HERE)  # used now
    object_store.keep_within(folder, sum(sizes.values()) - 1)
    assert (folder / "mine.txt").exists()
    assert not unfinished.exists()
    for age in (1, 2, 3):
        compiler.compile_text(f"define @of_{age}()", HERE)
    assert compiler.seen[3:] == ["define @of_2()"]


def test_no_folder_has_nothing_to_bound(folder: Path) -> None:
    object_store.keep_within(folder)
    assert not folder.exists()


@pytest.mark.parametrize("given", [None, "", "kept"])
def test_the_folder_is_named_or_in_the_users_cache(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TEST_OBJECTS", given or "")
    if given is None:
        monkeypatch.delenv("TEST_OBJECTS")
    wanted = {
        None: tmp_path / "cache" / "leanconv-tests" / "objects",
        "": None,
        "kept": tmp_path / "kept",
    }
    assert object_store.chosen_folder() == wanted[given]
    assert os.environ["TEST_OBJECTS"] == str(wanted[given] or "")
