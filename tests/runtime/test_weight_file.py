"""Files of packed weights: whole or made anew, made by one, mapped by all, bounded."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leanconv.codegen import private_folder
from leanconv.runtime import file_block, weight_file
from leanconv.runtime.memory import Block
from leanconv.runtime.weight_file import WeightFiles

pytestmark = pytest.mark.once

KEY, OTHER = "ab" * 20, "cd" * 20
SIZE = 10_000
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
LIMIT = 2**30


def pack(block: Block) -> None:
    """What a test's weights are."""
    block.write(0, DATA)


def never(_: Block) -> None:
    """For what is packed already."""
    pytest.fail("it is packed already")


def files_in(folder: Path) -> list[Path]:
    """Files of weights."""
    return sorted(folder.glob("*.weights"))


def holds(block: Block | None) -> bool:
    """Whether a block has the test's weights."""
    return block is not None and np.array_equal(block.view(0, SIZE), DATA)


def test_what_one_packs_others_map(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "weights"
    files = WeightFiles(folder, LIMIT)
    assert files.find(KEY, SIZE) is None
    assert not folder.exists()
    made = files.made(KEY, SIZE, pack)
    assert holds(made)
    (file,) = files_in(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for found in (WeightFiles(folder, LIMIT).find(KEY, SIZE), files.made(KEY, SIZE, never)):
        assert holds(found)
        assert found is not None
        assert not found.view(0, SIZE).flags.writeable
    assert files.find(OTHER, SIZE) is None
    assert files.find(KEY, SIZE + 1) is None  # what has that key and another size is none of ours


@pytest.mark.parametrize("size", [1, 4096 - 64, 4096, 3 * 2**22 + 1])
def test_any_size(tmp_path: Path, size: int) -> None:
    files = WeightFiles(tmp_path / "w", LIMIT)
    data = np.resize(DATA, size)
    made = files.made(KEY, size, lambda block: block.write(0, data))
    found = files.find(KEY, size)
    assert made is not None
    assert found is not None
    assert np.array_equal(found.view(0, size), data)


def flip(file: Path) -> None:
    """Damage a byte amid the weights."""
    data = bytearray(file.read_bytes())
    data[SIZE // 2] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a byte": flip,
    "the end": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "more": lambda file: file.write_bytes(file.read_bytes() + b"0"),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "others may write": lambda file: file.chmod(0o622),
    "a folder": lambda file: (file.unlink(), file.symlink_to("/")),
    "a FIFO": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = WeightFiles(tmp_path / "w", LIMIT)
    files.made(KEY, SIZE, pack)
    (file,) = files_in(tmp_path / "w")
    DAMAGES[damage](file)
    assert files.find(KEY, SIZE) is None
    assert "packed anew" in caplog.text
    assert holds(files.made(KEY, SIZE, pack))
    assert holds(files.find(KEY, SIZE))


def test_a_file_under_another_name_is_damaged(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "w", LIMIT)
    files.made(KEY, SIZE, pack)
    (file,) = files_in(tmp_path / "w")
    file.rename(file.with_name(f"{OTHER}.weights"))
    assert files.find(OTHER, SIZE) is None


def test_a_file_that_goes_stays_with_who_has_it(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "w", LIMIT)
    made = files.made(KEY, SIZE, pack)
    found = files.find(KEY, SIZE)
    for file in files_in(tmp_path / "w"):
        file.unlink()
    assert files.find(KEY, SIZE) is None
    files.made(KEY, SIZE, lambda block: block.write(0, DATA + 1))
    assert holds(made)
    assert holds(found)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError, ValueError])
def test_packing_that_fails_leaves_nothing(tmp_path: Path, kind: type[BaseException]) -> None:
    def fail(block: Block) -> None:
        pack(block)
        raise kind("of the user's")

    files = WeightFiles(tmp_path / "w", LIMIT)
    with pytest.raises(kind, match=r"of the user's"):
        files.made(KEY, SIZE, fail)
    assert [file.name for file in (tmp_path / "w").iterdir()] == [weight_file._LOCK]
    assert holds(files.made(KEY, SIZE, pack))


def refuse(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, number: int) -> None:
    """Let a call of the system fail."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(where, name, refused)


def test_without_room_nothing_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, file_block.FileBlock, "reserved", errno.ENOSPC)
    files = WeightFiles(tmp_path / "w", LIMIT)
    for _ in range(2):
        assert files.made(KEY, SIZE, never) is None
    assert caplog.text.count("No space left on device") == 1


def test_what_was_packed_is_used_even_if_it_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(monkeypatch, private_folder.OwnFolder, "_rename", errno.EACCES)
    files = WeightFiles(tmp_path / "w", LIMIT)
    made = files.made(KEY, SIZE, pack)
    assert holds(made)
    assert not files_in(tmp_path / "w")
    assert "Permission denied" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes")
def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w").chmod(0o777)
    files = WeightFiles(tmp_path / "w", LIMIT)
    for _ in range(2):
        assert files.find(KEY, SIZE) is None
        assert files.made(KEY, SIZE, never) is None
    assert caplog.text.count("can be written by others") == 1


def test_the_folder_is_bounded_and_what_was_used_stays(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "w", 25_000)
    keys = [f"{number:040x}" for number in range(4)]
    for age, key in enumerate(keys[:2]):
        files.made(key, SIZE, pack)
        os.utime(tmp_path / "w" / f"{key}.weights", (0, 1e9 - age))
    assert holds(files.find(keys[0], SIZE))  # older, but used since
    (tmp_path / "w" / "notes").write_bytes(bytes(50_000))
    files.made(keys[2], SIZE, pack)
    assert [holds(files.find(key, SIZE)) for key in keys] == [True, False, True, False]
    assert files.made(keys[3], 30_000, never) is None
    assert (tmp_path / "w" / "notes").exists()


def test_threads_and_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads one packs; a signal handler in the middle of packing has its own memory."""
    monkeypatch.setattr(weight_file, "_WAIT_S", 5)
    files = WeightFiles(tmp_path / "w", LIMIT)
    begun, calls = threading.Event(), []

    def slowly(block: Block) -> None:
        calls.append(files.made(OTHER, SIZE, never))
        begun.set()
        pack(block)

    def later() -> None:
        begun.wait(5)
        calls.append(files.made(KEY, SIZE, never))

    thread = threading.Thread(target=later)
    thread.start()
    assert holds(files.made(KEY, SIZE, slowly))
    thread.join()
    assert calls[0] is None
    assert holds(calls[1])


_HOLD = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))
    print(flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(weight_file.fcntl is None, reason="this system has no such locks")
def test_who_waits_for_another_process_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weight_file, "_WAIT_S", 0.05)
    files = WeightFiles(tmp_path / "w", LIMIT)
    files.made(OTHER, SIZE, pack)
    lock, place = tmp_path / "w" / weight_file._LOCK, weight_file._lock_place(KEY)
    held = [sys.executable, "-S", "-c", _HOLD, str(lock), str(place)]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        assert files.made(KEY, SIZE, never) is None
        assert holds(files.find(OTHER, SIZE))  # reading takes no lock
        assert "another process packs the same" in caplog.text
        assert holds(files.made("ef" * 20, SIZE, pack))  # nor does another key wait
        other.kill()
    assert holds(files.made(KEY, SIZE, pack))


def test_nothing_stays_open(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "w", LIMIT)
    if not Path("/proc/self/fd").exists():
        pytest.skip("reads /proc")
    gc.collect()  # other tests' blocks
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        blocks = [files.made(KEY, SIZE, pack), files.find(KEY, SIZE)]
        del blocks
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
