"""What the tests of the object cache share."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

from leanconv.codegen.cache import DiskCache
from support.waiting import HANG_S, wait_until

# Fills a cache until a file `stop` is in it, with entries whose contents follow from their keys;
# says when it began.
FILLER = """
import sys
from pathlib import Path
from leanconv.codegen.cache import DiskCache
folder, (first, limit, count, scale) = Path(sys.argv[1]), map(int, sys.argv[2:])
cache = DiskCache(folder, limit)
print("begun", flush=True)
for number in range(first, first + count):
    key = f"{number % 40:040x}"
    cache.put(key, key.encode() * (1 + scale * (number % 7)))
    if (folder / "stop").exists():
        break
"""


def python_path() -> str:
    """This process's path, so that others import the same sources."""
    return ":".join(path for path in sys.path if path)


def expected(number: int, scale: int) -> set[bytes]:
    """The bodies that a filler may write under a key."""
    key = f"{number:040x}".encode()
    return {key * (1 + scale * i) for i in range(7)}


def filler(
    folder: Path, first: int = 0, limit: int = 2**28, count: int = 2**40, scale: int = 800
) -> subprocess.Popen[str]:
    """Start a process that fills a cache, and return when it has begun."""
    numbers = (first, limit, count, scale)
    process = subprocess.Popen(
        [sys.executable, "-c", FILLER, str(folder), *map(str, numbers)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def kill_after(process: subprocess.Popen[str], entry: Path) -> None:
    """Let it write an entry and go on, then kill it so that it can clean up nothing."""
    wait_until(entry.exists)
    process.send_signal(signal.SIGKILL)
    process.wait()


def assert_whole(folder: Path, records: list[logging.LogRecord], scale: int = 800) -> int:
    """Read every entry, demand that none is damaged, and return how many there are."""
    cache, count = DiskCache(folder), 0
    for path in folder.glob("*.o"):
        body = cache.get(path.stem)
        assert body is not None, f"{path.name} is damaged"
        assert body in expected(int(path.stem, 16), scale)
        count += 1
    assert not records
    return count


def run_program(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with settings in its environment."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
    )
