"""Blocks whose memory is a file's."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from leanconv.errors import LeanConvError
from leanconv.runtime import file_block
from leanconv.runtime.file_block import FileBlock, unnamed_block
from leanconv.spec.format import ALIGNMENT

pytestmark = pytest.mark.once


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        yield file.fileno()


@pytest.mark.parametrize("size", [0, 1, 65, 4096, 5_000_000])
def test_a_block_is_zero_first_and_the_file_has_what_is_written(size: int, handle: int) -> None:
    block = FileBlock.reserved(handle, size, beside=32)
    assert block.bytes == size
    assert block.address % ALIGNMENT == 0
    assert not block.view(0, size).any()
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    block.write(0, data)
    assert os.fstat(handle).st_size == size + 32
    other = FileBlock(handle, size)
    assert other.address != block.address
    assert np.array_equal(other.view(0, size), data)
    assert ctypes.string_at(other.address, size) == data.tobytes()
    assert not other.view(0, size).flags.writeable
    read = np.zeros(size - size // 3, np.uint8)
    other.read_into(size // 3, read)
    assert np.array_equal(read, data[size // 3 :])


def test_released_pages_come_again_from_the_file(handle: int) -> None:
    block = FileBlock.reserved(handle, 100_000)
    block.view(0, 100_000)[:] = 7
    for given in ((), (1, 50_000), (5_000, 10), (90_000, 10_000)):
        block.release(*given)
        assert (block.view(0, 100_000) == 7).all()


def test_a_block_outlives_its_file_and_closes_what_it_opened(tmp_path: Path) -> None:
    gc.collect()  # other tests' blocks
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    block = unnamed_block(tmp_path / "made", 10_000)
    block.view(0, 10_000)[:] = 3
    assert not list((tmp_path / "made").iterdir())
    read = np.zeros(10_000, np.uint8)
    block.read_into(0, read)
    assert (read == 3).all()
    view = block.view(0, 10_000)
    del block
    gc.collect()
    assert (view == 3).all()
    del view
    gc.collect()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_shorter_is_refused(handle: int) -> None:
    os.write(handle, b"12345")
    with pytest.raises(ValueError, match="size"):
        FileBlock(handle, 6)


def failing(number: int) -> Callable[..., int]:
    """A call of the system that fails."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_disk_without_room_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC), raising=False)
    with pytest.raises(LeanConvError, match="No space left.*LEANCONV_CACHE_DIR"):
        unnamed_block(tmp_path, 10_000)


def test_where_no_room_can_be_reserved_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP), raising=False)
    assert not unnamed_block(tmp_path, 3_000_000).view(0, 3_000_000).any()
    monkeypatch.delattr(os, "posix_fallocate")
    assert not unnamed_block(tmp_path, 3_000_000).view(0, 3_000_000).any()
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(LeanConvError, match="No space left"):
        unnamed_block(tmp_path, 10_000)


def test_reading_goes_on_after_short_reads(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block = FileBlock.reserved(handle, 1000)
    block.write(0, np.arange(250, dtype=np.uint32))
    monkeypatch.setattr(file_block, "_AT_ONCE", 7)
    read = np.zeros(996, np.uint8)
    block.read_into(4, read)
    assert read.view(np.uint32).tolist() == [*range(1, 250)]
    os.ftruncate(handle, 10)
    with pytest.raises(OSError, match="ends at byte 10"):
        block.read_into(0, read)
