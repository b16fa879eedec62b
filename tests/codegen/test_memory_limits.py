"""Little memory: what a step takes is compared with what limits leave, before LLVM is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leanconv.codegen import process_limits
from leanconv.errors import LeanConvError, OutOfMemoryError, memory_reported

MIB = 2**20


def test_an_exception_that_python_loses_is_memory_s() -> None:
    @memory_reported("a step")
    def step(said: str) -> None:
        raise SystemError(said)

    with pytest.raises(OutOfMemoryError, match="a step: memory could not be had"):
        step("error return without exception set")
    with pytest.raises(SystemError, match="bad argument"):
        step("bad argument to internal function")


def test_nothing_is_asked_for_where_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "memory_left", lambda: ())
    process_limits.require(process_limits.Need(2**60), "a step")
    assert process_limits.affordable_threads(64, allocating=True) == 64


def test_too_little_is_an_error_that_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    left = process_limits.Left(3 * MIB, "`ulimit -v`", "raise `ulimit -v`", 3)
    monkeypatch.setattr(process_limits, "memory_left", lambda: (left,))
    process_limits.require(process_limits.Need(MIB, MIB, MIB), "a step")
    with pytest.raises(OutOfMemoryError) as caught:
        process_limits.require_for_compiling("x" * MIB)
    message = str(caught.value)
    assert "compiling a kernel of 1 MiB of code takes up to 68 MiB" in message
    assert "`ulimit -v` leaves 3 MiB; raise `ulimit -v`" in message
    assert isinstance(caught.value, LeanConvError)
    assert isinstance(caught.value, MemoryError)
    assert process_limits.affordable_threads(4, allocating=False) == 0


def test_a_thread_that_allocates_needs_room_for_its_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    left = process_limits.Left(400 * MIB, "a limit", "raise it", 3)
    monkeypatch.setattr(process_limits, "memory_left", lambda: (left,))
    monkeypatch.setattr(process_limits, "_stack_bytes", lambda: 8 * MIB)
    assert process_limits.affordable_threads(4, allocating=True) == 2
    assert process_limits.affordable_threads(4, allocating=False) == 4


def test_each_limit_counts_what_the_system_counts_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of 128 MiB may map LLVM's 150: pages of a file go where others are needed."""
    need = process_limits.Need(10, 20, 40)
    for kinds, counted in ((1, 10), (2, 30), (3, 70)):
        enough = process_limits.Left(counted, "a limit", "raise it", kinds)
        monkeypatch.setattr(process_limits, "memory_left", lambda left=enough: (left,))
        process_limits.require(need, "a step")
        short = enough._replace(bytes=counted - 1)
        monkeypatch.setattr(process_limits, "memory_left", lambda left=short: (left,))
        with pytest.raises(OutOfMemoryError):
            process_limits.require(need, "a step")


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_control_groups_count_pages_of_files_as_free(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = process_limits._GROUP_1 if version == 1 else process_limits._GROUP_2
    cached = process_limits._CACHED_1 if version == 1 else process_limits._CACHED_2
    limit, usage = tmp_path / names[0], tmp_path / names[1]
    usage.write_text(f"{90 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\n{cached[0]} {7 * MIB}\n{cached[1]} {MIB}\n")
    limit.write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    assert not process_limits._limited(limit)
    limit.write_text(f"{100 * MIB}\n")
    assert process_limits._limited(limit)
    group = process_limits._Group(tmp_path, *names, cached)
    monkeypatch.setattr(process_limits, "_limited_groups", lambda: (group,))
    monkeypatch.setattr(process_limits, "_swap_bytes", lambda: 2 * MIB)
    (left,) = process_limits._groups_left()
    assert left.bytes == (100 - 90 + 7 + 1 + 2) * MIB
    assert left.mend == f"raise {names[0]}"
    limit.unlink()
    assert not list(process_limits._groups_left())


# Children that may take so many MiB more than they have: each works, or says what is missing.
_SWEEP = """
import os, resource, signal, sys
import numpy as np
import leanconv as lc
if "warm" in sys.argv:  # all of it under a limit, as `ulimit -v` in a shell sets it
    resource.setrlimit(resource.RLIMIT_AS, (2**34, resource.RLIM_INFINITY))
    lc.conv2d(np.ones((1, 3, 9, 9), "f4"), np.ones((5, 3, 3, 3), "f4"), threads=1)
none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
spare = bytearray(2**22)  # Python takes memory by the MiB: there may be none for an error's text
x, w = np.ones((1, 8, 12, 12), "f4"), np.ones((16, 8, 3, 3), "f4")
for room in sys.argv[2:]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        size = int(open("/proc/self/statm").read().split()[0]) * 4096 + int(room) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        try:
            lc.conv2d(x, w, threads=2)
            answer = lc.plan_conv2d(x.shape, w, threads=2, algorithm="winograd")(x)
            said = b"works" if abs(answer.max() - 72) < 1e-3 else b"wrong"
        except BaseException as error:
            spare = b""  # without a limit again, for what follows is the test's own need
            resource.setrlimit(resource.RLIMIT_AS, none)
            ours = "" if isinstance(error, lc.LeanConvError) else "foreign "
            said = f"{ours}{type(error).__name__}: {error}".encode()
        os.write(write, said)
        os._exit(0)
    os.close(write)
    print(room, os.waitpid(child, 0)[1], os.read(read, 10000).decode())
    os.close(read)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets RLIMIT_AS")
@pytest.mark.parametrize(
    ("state", "rooms"),
    [
        ("cold", (0, 1, 3, 8, 40, 100, 180, 200, 215, 230, 400)),
        ("warm", (0, 2, 4, 6, 9, 14, 20, 30, 300)),
    ],
)
def test_no_limit_ends_the_process(state: str, rooms: tuple[int, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SWEEP, state, *map(str, rooms)],
        env={
            **os.environ,
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "LEANCONV_CACHE_BYTES": "0",
            "OPENBLAS_NUM_THREADS": "2",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [int(room) for room, _, _ in rows] == list(rooms), done.stderr
    # CPython, from 3.11 on, asks for memory within its handler of exceptions: where there is none
    # left, an import (our first call's) never ends.
    endless = [int(room) for room, status, _ in rows if status == str(int(signal.SIGALRM))]
    assert all(room <= 3 for room in endless), rows
    ended = {status for room, status, _ in rows if int(room) not in endless}
    assert ended == {"0"}, (rows, done.stderr)
    answers = {int(room): answer for room, _, answer in rows if int(room) not in endless}
    kinds = {room: answer.split(":")[0] for room, answer in answers.items()}
    # Where there is no memory for an exception, CPython may lose it before any code of ours runs.
    lost = {room for room, kind in kinds.items() if kind == "foreign SystemError"}
    assert all(room <= 8 for room in lost), answers
    others = {kind for room, kind in kinds.items() if room not in lost}
    assert others <= {"works", "OutOfMemoryError", "BackendError"}, answers
    assert answers.get(rooms[0]) != "works"
    assert answers[rooms[-1]] == "works"
