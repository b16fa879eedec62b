"""The object cache: whole or absent, checked, bounded, harmless when it cannot be used."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leanconv.codegen import cache as cache_module
from leanconv.codegen import private_folder
from leanconv.codegen.cache import DiskCache
from support.cache_check import assert_whole, expected, filler, kill_after
from support.waiting import HANG_S

KEY = "ab" * 20
BODY = bytes(range(256)) * 40


def test_what_was_put_is_got(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path / "new" / "objects")
    assert cache.get(KEY) is None
    cache.put(KEY, BODY)
    cache.put(KEY[::-1], b"")
    assert cache.get(KEY) == BODY
    assert cache.get(KEY[::-1]) == b""
    assert DiskCache(tmp_path / "new" / "objects").get(KEY) == BODY
    cache.put(KEY, BODY[:100])
    assert cache.get(KEY) == BODY[:100]
    assert not caplog.records


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "no body": lambda data: data[:50],
    "half": lambda data: data[: len(data) // 2],
    "last byte missing": lambda data: data[:-1],
    "one bit in the body": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "one bit in the digest": lambda data: data[:20] + bytes([data[20] ^ 128]) + data[21:],
    "one bit in the head": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "another file": lambda data: b"\x7fELF" + bytes(5000),
    "more": lambda data: data + b"\0",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_a_miss_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, BODY)
    path = tmp_path / f"{KEY}.o"
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert cache.get(KEY) is None
    (record,) = caplog.records
    assert "damaged" in record.getMessage()
    assert KEY in record.getMessage()
    cache.put(KEY, BODY)
    assert cache.get(KEY) == BODY
    assert len(caplog.records) == 1


def test_another_entrys_content_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Objects and forms are run as what their names say."""
    other, cache = KEY[::-1], DiskCache(tmp_path)
    cache.put(KEY, BODY)
    cache.put(other, BODY[::-1])
    paths = [tmp_path / f"{key}.o" for key in (KEY, other)]
    paths[0].rename(tmp_path / "aside")
    paths[1].rename(paths[0])
    (tmp_path / "aside").rename(paths[1])
    assert not cache.get_all([KEY, other])
    assert [record.getMessage().count("damaged") for record in caplog.records] == [1, 1]
    assert not list(tmp_path.iterdir())
    cache.put(KEY, BODY)
    paths[0].rename(tmp_path / f"{KEY}.forms")
    assert DiskCache(tmp_path, suffix=".forms").get(KEY) is None
    assert not list(tmp_path.iterdir())


def test_what_its_reader_refuses_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path)
    cache.put(KEY, BODY)
    cache.refuse(KEY)
    assert KEY in caplog.text
    assert cache.get(KEY) is None
    cache.refuse(KEY)  # another process was faster
    DiskCache(None).refuse(KEY)
    DiskCache(tmp_path / "absent").refuse(KEY)


def test_killed_at_any_moment_every_entry_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scale = 3000  # up to 720 kB, so that a kill often comes in the middle of a write
    for first in range(0, 39, 3):
        process = filler(tmp_path, first=first, scale=scale)
        kill_after(process, tmp_path / f"{first + 1:040x}.o")
        assert_whole(tmp_path, caplog.records, scale)
    assert assert_whole(tmp_path, caplog.records, scale) >= 26  # the processes did fill it


def test_leftovers_of_killed_processes_count_and_go(tmp_path: Path) -> None:
    limit = 200_000
    for i in range(10):
        part = tmp_path / f"{i:024x}.part"
        part.write_bytes(bytes(50_000))
        os.utime(part, (time.time() - 100,) * 2)
    cache = DiskCache(tmp_path, limit)
    cache.put(KEY, BODY)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= limit
    assert cache.get(KEY) == BODY


def test_old_leftovers_go_though_there_is_room(tmp_path: Path) -> None:
    for name, age_s in (
        ("tmpab_c12xy.part", 3600),
        (f"{1:024x}.part", 3600),
        (f"{2:024x}.part", 1),
    ):
        (tmp_path / name).write_bytes(bytes(50))
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    DiskCache(tmp_path, 60 * len(BODY)).put(KEY, BODY)
    assert {path.name for path in tmp_path.iterdir()} == {f"{2:024x}.part", f"{KEY}.o"}


def test_files_of_other_names_neither_count_nor_go(tmp_path: Path) -> None:
    others = ("thesis.txt", "film.mkv.part", f"{KEY}.json", "short.o")
    for name in others:
        (tmp_path / name).write_bytes(bytes(100_000))
        os.utime(tmp_path / name, (1, 1))
    cache = DiskCache(tmp_path, 3 * len(BODY))
    cache.put(KEY, BODY)
    assert cache.get(KEY) == BODY
    assert {path.name for path in tmp_path.iterdir()} == {*others, f"{KEY}.o"}


def test_an_entry_larger_than_the_bound_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path, len(BODY) - 1)
    cache.put(KEY, BODY)
    assert not list(tmp_path.iterdir())
    assert not caplog.records


def test_two_processes_fill_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = [filler(tmp_path) for _ in range(2)]
    seen, body = 0, None
    cache = DiskCache(tmp_path)
    while (seen < 1000 or body is None) and all(process.poll() is None for process in both):
        for number in range(40):
            body = cache.get(f"{number:040x}")
            assert body is None or body in expected(number, 800)
            seen += body is not None
    (tmp_path / "stop").touch()
    assert [process.wait(HANG_S) for process in both] == [0, 0]
    assert seen >= 1000
    assert assert_whole(tmp_path, caplog.records) == 40
    assert not list(tmp_path.glob("*.part"))


def test_two_processes_fill_at_once_under_a_small_bound(tmp_path: Path) -> None:
    """Each drops what the other writes; neither fails, and what is left is whole."""
    limit = 60_000
    both = [filler(tmp_path, first=20 * i, limit=limit, count=600) for i in range(2)]
    assert [process.wait(HANG_S) for process in both] == [0, 0]
    assert_whole(tmp_path, [])
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 3 * limit


def test_the_size_is_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    limit = 50 * len(BODY)
    cache = DiskCache(tmp_path, limit)
    for i in range(300):
        cache.put(f"{i:040x}", BODY)
        os.utime(tmp_path / f"{i:040x}.o", (i, i))
        held = sum(p.stat().st_size for p in tmp_path.iterdir())
        assert held <= 1.2 * limit  # the bound is looked after once in a while
    kept = sorted(int(p.stem, 16) for p in tmp_path.iterdir())
    assert kept == list(range(300 - len(kept), 300))
    assert len(kept) > 40


@pytest.mark.parametrize("ahead_s", [3600, 10 * 365 * 86400])
def test_entries_of_the_future_go_first(tmp_path: Path, ahead_s: float) -> None:
    """A clock that was set back: what is written now must not go before what lies there."""
    cache, then = DiskCache(tmp_path, 10 * len(BODY)), time.time() + ahead_s
    for i in range(8):
        cache.put(f"{i:040x}", BODY)
        os.utime(tmp_path / f"{i:040x}.o", (then, then))
    for i in range(8, 16):
        cache.put(f"{i:040x}", BODY)
    assert all(cache.get(f"{i:040x}") == BODY for i in range(8, 16))


def test_a_part_of_the_future_goes(tmp_path: Path) -> None:
    part, then = tmp_path / f"{1:024x}.part", time.time() + 3600
    part.write_bytes(bytes(50))
    os.utime(part, (then, then))
    DiskCache(tmp_path, 60 * len(BODY)).put(KEY, BODY)
    assert not part.exists()


def test_an_old_cache_that_is_too_large_shrinks_at_the_first_entry(tmp_path: Path) -> None:
    full = DiskCache(tmp_path, 2**30)
    for i in range(20):
        full.put(f"{i:040x}", BODY)
    DiskCache(tmp_path, 5 * len(BODY)).put(KEY, BODY)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 5 * len(BODY)


def test_few_processes_of_many_look_at_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes one small entry: a sixty-fourth of the bound goes by between two looks."""
    looks = []
    monkeypatch.setattr(cache_module, "drop_oldest", lambda *_: looks.append(1))
    for i in range(640):
        DiskCache(tmp_path, 1000 * len(BODY)).put(f"{i:040x}", BODY)
    assert 20 <= len(looks) <= 70  # 41 are expected


def test_no_folder_keeps_nothing() -> None:
    cache = DiskCache(None)
    cache.put(KEY, BODY)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("place", ["under a file", "a file", "/proc"])
def test_a_folder_that_cannot_be_made_is_harmless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    (tmp_path / "file").write_text("")
    folder = {
        "under a file": tmp_path / "file" / "objects",
        "a file": tmp_path / "file",
        "/proc": Path("/proc/leanconv/objects"),
    }[place]
    cache = DiskCache(folder)
    cache.put(KEY, BODY)
    assert cache.get(KEY) is None
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()
    assert str(folder) in record.getMessage()


def test_a_cache_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many entries of however many kinds there are, and with what to do about it."""
    (tmp_path / "file").write_text("")
    for kind in ("objects", "choices"):
        for number in range(5):
            DiskCache(tmp_path / "file" / kind).put(f"{number:040x}", BODY)
    (record,) = caplog.records
    assert "set LEANCONV_CACHE_DIR" in record.getMessage()
    assert "LEANCONV_CACHE_BYTES=0" in record.getMessage()


def test_many_entries_are_read_by_one_check_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "objects")
    keys = [f"{number:040x}" for number in range(4)]
    for key in keys[:3]:
        cache.put(key, key.encode())
    (tmp_path / "objects" / f"{keys[1]}.o").write_bytes(b"damaged")
    checked: list[object] = []
    walk = private_folder._walk
    monkeypatch.setattr(private_folder, "_walk", lambda *a: checked.append(a) or walk(*a))
    assert cache.get_all(keys) == {key: key.encode() for key in (keys[0], keys[2])}
    assert len(checked) <= 1


def test_an_entry_that_is_a_folder_is_harmless(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.o").mkdir()
    cache = DiskCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, BODY)
    assert cache.get(KEY) is None


def test_a_folder_removed_meanwhile_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    cache = DiskCache(folder)
    cache.put(KEY, BODY)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, BODY)
    assert cache.get(KEY) == BODY


@pytest.mark.skipif(not hasattr(os, "fork"), reason="drops its privileges in a forked child")
@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_permissions_are_harmless(mode: int) -> None:
    """Read-only, write-only and closed folders, for a user who is not root."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "objects"
        DiskCache(folder).put(KEY, BODY)
        folder.chmod(mode)
        Path(made).chmod(0o755)
        if os.geteuid() == 0:
            for path in (folder, folder / f"{KEY}.o"):
                os.chown(path, 65534, 65534)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                logging.disable()
                if os.geteuid() == 0:
                    os.setuid(65534)
                cache = DiskCache(folder)
                found = cache.get(KEY)
                cache.put(KEY[::-1], BODY)
                cache.put(KEY[::-1], BODY)
                code = 0 if found == (None if mode == 0 else BODY) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        folder.chmod(0o700)
