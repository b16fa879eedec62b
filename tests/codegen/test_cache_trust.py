"""The object cache runs what it finds: only what this user wrote, where nobody else may write."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from leanconv.codegen import compiler, private_folder
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import instance_of
from leanconv.codegen.host import host
from leanconv.codegen.keys import key_of
from leanconv.codegen.machine_code import compile_text
from leanconv.runtime.file_block import FileBlock
from leanconv.runtime.weight_file import WeightFiles
from support.hostile import bounded
from support.kernel_runner import run_kernel
from support.small_kernels import Scale

KEY = "ab" * 20
BODY = bytes(range(256)) * 40
NOBODY = 65534
HAS_OWNERS = hasattr(os, "geteuid")
root_only = pytest.mark.skipif(
    not HAS_OWNERS or os.geteuid() != 0, reason="only root can give files to other users"
)
pytestmark = [
    pytest.mark.skipif(not HAS_OWNERS, reason="this system has no owners and modes"),
    pytest.mark.usefixtures("real_compiler"),
]


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets the umask until the test ends."""
    held = os.umask(0o022)
    yield os.umask
    os.umask(held)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def filled(folder: Path) -> Path:
    """A folder with one entry, made as the cache makes it."""
    DiskCache(folder).put(KEY, BODY)
    assert DiskCache(folder).get(KEY) == BODY
    return folder


# -- code of others ------------------------------------------------------------------------
@pytest.mark.parametrize(("folder_mode", "factor"), [(0o700, 3), (0o777, 2)])
def test_forged_code_where_others_may_write_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_mode: int, factor: int
) -> None:
    """The code of another kernel under the right name, with the right checksum.

    In a folder of this user's it is what the cache holds, which shows that the forgery would run.
    """
    key = key_of(instance_of(Scale(2.0), host()).digest, host())
    forged = compile_text(compiler._named_text(key, Scale(3.0).emit(host())), host())
    cache = DiskCache(tmp_path / "objects")
    cache.put(key, forged)
    (tmp_path / "objects").chmod(folder_mode)
    monkeypatch.setattr(compiler, "object_cache", lambda: cache)
    x = np.arange(8, dtype="f4")
    np.testing.assert_array_equal(run_kernel(Scale(2.0), x, x * np.nan), factor * x)


# -- folders -------------------------------------------------------------------------------
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177, 0o777])
def test_folders_are_made_for_this_user_alone_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    umask(mask)
    folder = filled(tmp_path / "new" / "objects")
    assert mode(folder.parent) == mode(folder) == 0o700
    assert mode(folder / f"{KEY}.o") == 0o600


def others_write(folder: Path) -> None:
    folder.chmod(0o777)


def the_group_writes(folder: Path) -> None:
    folder.chmod(0o770)


def all_write_and_sticky(folder: Path) -> None:
    folder.chmod(0o1777)


def others_write_above(folder: Path) -> None:
    folder.parent.chmod(0o757)


def it_is_a_link(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def it_belongs_to_another(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def it_lies_in_the_folder_of_another(folder: Path) -> None:
    os.chown(folder.parent, NOBODY, NOBODY)


def it_lies_behind_the_link_of_another(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("elsewhere"))
    folder.parent.symlink_to("elsewhere")
    os.chown(folder.parent, NOBODY, NOBODY, follow_symlinks=False)


REFUSED: dict[Callable[[Path], None], str] = {
    others_write: "mode 0777.*chmod 700",
    the_group_writes: "mode 0770.*chmod 700",
    all_write_and_sticky: "mode 1777.*chmod 700",
    others_write_above: "mode 0757.*chmod go-w",
    it_is_a_link: "is a link",
    it_belongs_to_another: f"owner {NOBODY}.*belongs neither to",
    it_lies_in_the_folder_of_another: f"owner {NOBODY}.*belongs neither to",
    it_lies_behind_the_link_of_another: f"link that belongs to the user {NOBODY}",
}


@pytest.mark.parametrize(
    "change",
    [pytest.param(f, marks=root_only if "another" in f.__name__ else ()) for f in REFUSED],
    ids=lambda f: f.__name__,
)
def test_a_folder_that_is_not_this_users_alone_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    """Nothing is read, nothing is kept, and one warning says why and what to do."""
    folder = filled(tmp_path / "cache" / "objects")
    change(folder)
    before = sorted(path.name for path in folder.iterdir())
    for cache in (DiskCache(folder), DiskCache(folder.parent / folder.name)):
        assert cache.get(KEY) is None
        cache.put(KEY[::-1], BODY)
        assert cache.get(KEY[::-1]) is None
    assert sorted(path.name for path in folder.iterdir()) == before
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(folder.parent) in record.getMessage()
    assert "set LEANCONV_CACHE_DIR" in record.getMessage()
    assert re.search(REFUSED[change], record.getMessage())


def test_a_process_of_another_user_does_not_use_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Root in a user's folder included: what the user put there would run as root."""
    folder = filled(tmp_path / "cache" / "objects")
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert DiskCache(folder).get(KEY) is None
    (record,) = caplog.records
    assert "belongs neither to the user of this process, 12345, nor to root" in record.getMessage()


# -- what root has filled ------------------------------------------------------------------
@pytest.fixture
def of_root() -> Iterator[Path]:
    """A cache that root filled, where every user may read it and nobody else may write it."""
    with tempfile.TemporaryDirectory() as made:  # pytest's own may be read by its user alone
        folder = filled(Path(made) / "cache" / "objects")
        for path in (Path(made), folder.parent, folder):
            path.chmod(0o755)
        (folder / f"{KEY}.o").chmod(0o644)
        yield folder


def as_another_user(work: Callable[[], bool]) -> bool:
    """Whether work in a process of a user who is not root gives True."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@root_only
def test_what_root_has_filled_is_read_by_other_users(of_root: Path) -> None:
    """Read, not written; one warning says so. The folder of an image that root has built."""
    entries = sorted(path.name for path in of_root.iterdir())

    def used() -> bool:
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("leanconv").addHandler(handler)
        read = DiskCache(of_root).get(KEY) == BODY and not lines
        DiskCache(of_root).put(KEY[::-1], BODY)
        DiskCache(of_root).put(KEY[::-1], BODY)
        return read and len(lines) == 1 and "nothing new is kept" in lines[0]

    assert as_another_user(used)
    assert sorted(path.name for path in of_root.iterdir()) == entries


@root_only
@pytest.mark.parametrize("where", ["folder", "above", "entry"])
def test_what_others_may_write_beside_root_is_not_read(of_root: Path, where: str) -> None:
    wrong = {"folder": of_root, "above": of_root.parent, "entry": of_root / f"{KEY}.o"}[where]
    wrong.chmod(wrong.stat().st_mode | 0o020)
    assert as_another_user(lambda: DiskCache(of_root).get(KEY) is None)


@root_only
def test_weights_that_root_has_packed_are_mapped_by_other_users(of_root: Path) -> None:
    def fill(block: FileBlock) -> None:
        block.view(0, 64)[:] = 7

    made = WeightFiles(of_root, 1 << 20).made("ab" * 16, 64, fill)
    assert made is not None
    for path in of_root.iterdir():
        path.chmod(0o644)

    def used() -> bool:
        found = WeightFiles(of_root, 1 << 20).find("ab" * 16, 64)
        return found is not None and bytes(found.view(0, 64)) == b"\7" * 64

    assert as_another_user(used)


def test_nothing_is_made_in_a_folder_that_others_may_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    DiskCache(tmp_path / "cache" / "objects").put(KEY, BODY)
    tmp_path.chmod(0o700)
    assert not list(tmp_path.iterdir())
    assert "mode 0777" in caplog.text


def test_folders_that_are_safe_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that others may read, one in a sticky folder (as the temporary one is), and links."""
    read, shared = tmp_path / "read" / "objects", tmp_path / "shared"
    filled(read)
    read.chmod(0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "relative").symlink_to("chain")
    (tmp_path / "chain").symlink_to(tmp_path / "read" / ".." / "shared")
    for folder in (read, shared / "objects", tmp_path / "relative" / "objects"):
        filled(folder)
    assert (shared / "objects").is_dir()
    assert not caplog.records


def test_links_in_a_circle_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with bounded():
        DiskCache(tmp_path / "a" / "objects").put(KEY, BODY)
    assert "links" in caplog.text


# -- entries -------------------------------------------------------------------------------
def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    held = os.getcwd()
    os.chdir(path.parent)  # a socket's name must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(held)


def a_link_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_an_entry(path: Path) -> None:
    (path.parent / "copy").write_bytes(whole())
    path.symlink_to("copy")


def a_terabyte(path: Path) -> None:
    path.write_bytes(whole())
    os.truncate(path, 1 << 40)


def one_that_others_may_write(path: Path) -> None:
    path.write_bytes(whole())
    path.chmod(0o602)


def one_of_another_user(path: Path) -> None:
    path.write_bytes(whole())
    os.chown(path, NOBODY, NOBODY)


def whole() -> bytes:
    """What the cache itself would have written."""
    return b"leanconv object 2\n" + hashlib.sha256(f"{KEY}.o\n".encode() + BODY).digest() + BODY


WRONG = (
    a_fifo, a_socket, a_link_without_end, a_link_to_an_entry, a_terabyte,
    one_that_others_may_write, pytest.param(one_of_another_user, marks=root_only),
)  # fmt: skip


@pytest.mark.parametrize("make", WRONG, ids=lambda f: f.__name__)
def test_an_entry_that_this_user_did_not_write_so_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    """It neither blocks nor takes memory; a warning names it, it goes, and is made anew."""
    folder = tmp_path / "objects"
    folder.mkdir(0o700)
    make(folder / f"{KEY}.o")
    cache = DiskCache(folder)
    with bounded():
        assert cache.get(KEY) is None
    (record,) = caplog.records
    assert KEY in record.getMessage()
    assert not os.path.lexists(folder / f"{KEY}.o")
    cache.put(KEY, BODY)
    assert cache.get(KEY) == BODY
    assert len(caplog.records) == 1


def test_an_entry_is_as_large_as_the_cache_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "objects")
    assert DiskCache(folder, len(BODY)).get(KEY) == BODY
    assert DiskCache(folder, len(BODY) - 1).get(KEY) is None
    assert "expected at most" in caplog.text


# -- between check and use -----------------------------------------------------------------
def test_a_folder_exchanged_after_the_check_is_not_read(tmp_path: Path) -> None:
    """Reading and writing go through the folder that was checked, whatever its name means now."""
    folder = filled(tmp_path / "objects")
    with private_folder.own_folder(folder) as checked:
        folder.rename(tmp_path / "checked")
        folder.mkdir()
        (folder / f"{KEY}.o").write_bytes(b"forged")
        assert checked.read(f"{KEY}.o", 1 << 20) == whole()
        checked.write("new.o", b"1")
        checked.remove(f"{KEY}.o")
    assert {path.name for path in (tmp_path / "checked").iterdir()} == {"new.o"}
    assert (folder / f"{KEY}.o").read_bytes() == b"forged"


def test_a_folder_exchanged_during_the_walk_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as a folder above is checked, its name means another one, a link or a folder."""
    forged = tmp_path / "forged"
    filled(forged / "cache" / "objects")
    (forged / "cache" / "objects" / f"{KEY}.o").write_bytes(b"forged")
    above = tmp_path / "above"
    filled(above / "cache" / "objects")
    check = private_folder._check

    def exchanging(handle: int, where: str, last: bool) -> None:
        check(handle, where, last)
        if where == str(above):
            above.rename(tmp_path / "moved")
            above.symlink_to(forged)

    monkeypatch.setattr(private_folder, "_check", exchanging)
    assert DiskCache(above / "cache" / "objects").get(KEY) == BODY
    assert above.is_symlink()


# -- systems without owners ----------------------------------------------------------------
def test_without_owners_names_are_used_and_entries_still_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_folder, "HAS_OWNERS", False)
    folder = tmp_path / "new" / "objects"
    cache = DiskCache(folder, 2 * len(BODY))
    for number in range(5):
        cache.put(f"{number:040x}", BODY)
    assert 0 < len(list(folder.iterdir())) <= 5
    assert cache.get(f"{4:040x}") == BODY
    assert not caplog.records
    os.mkfifo(folder / f"{KEY}.o")
    with bounded():
        assert cache.get(KEY) is None
    assert KEY in caplog.text
