"""Limits of this process: memory that is left before LLVM takes some, and a CPU quota.

LLVM ends the process where it is refused memory. What a step takes at most is therefore compared
with what is left of `ulimit -v`, `ulimit -d` and the limits of control groups; where nothing is
limited that costs three microseconds. Control groups are Linux's, of version 1 and 2.
"""

from __future__ import annotations

import functools
import mmap
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from leanconv.errors import OutOfMemoryError
from leanconv.units import format_bytes

_PROCESS = Path("/proc/self")
_ESCAPE = re.compile(r"\\([0-7]{3})")  # of a space, say, in a path


def group_folders(controller: str, process: Path = _PROCESS) -> tuple[tuple[Path, int], ...]:
    """The folders of a controller's groups: the process's own, then each above it that is seen.

    A limit of any of them binds the process.

    Args:
        controller: "cpu", "memory".
        process: the folder of the process in `/proc`.

    Returns:
        Folders, each with the version of its hierarchy: 1 or 2. Empty where there are none, or the
        system does not tell.
    """
    try:
        groups = _groups(controller, (process / "cgroup").read_text())
        mounts = (process / "mountinfo").read_text()
    except (OSError, ValueError):
        return ()
    found = []
    for version, root, point in _mounts(controller, mounts):
        if version in groups:
            folder = _folder(groups[version], root, point)
            found += [(each, version) for each in (folder, *folder.parents) if _below(each, point)]
    return tuple(dict.fromkeys(found))


def _groups(controller: str, rows: str) -> dict[int, str]:
    """Paths of the process's groups by version, as `/proc/self/cgroup` states them."""
    found = {}
    for row in rows.splitlines():
        number, controllers, path = row.split(":", 2)
        if number == "0" and not controllers:
            found[2] = path
        elif controller in controllers.split(","):
            found[1] = path
    return found


def _mounts(controller: str, rows: str) -> Iterator[tuple[int, str, Path]]:
    """Version, root and folder of the mounted hierarchies that may have a controller."""
    for row in rows.splitlines():
        before, _, after = row.partition(" - ")
        fields, system = before.split(), after.split()
        if len(fields) < 5 or len(system) < 3:
            continue
        root, point = (_ESCAPE.sub(_character, field) for field in fields[3:5])
        if system[0] == "cgroup2":
            yield 2, root, Path(point)
        elif system[0] == "cgroup" and controller in system[2].split(","):
            yield 1, root, Path(point)


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 8))


def _folder(path: str, root: str, point: Path) -> Path:
    """Return the folder of a group below a mount that shows the groups below `root`.

    In a container the mount may show its own group alone, while the path begins at the host's root
    or, in a namespace of its own, leads out of what is seen: the mount itself is nearest then.
    """
    parts = Path(path).parts[1:]
    above = Path(root).parts[1:]
    if ".." in parts or parts[: len(above)] != above:
        return point
    return point.joinpath(*parts[len(above) :])


def _below(folder: Path, point: Path) -> bool:
    return folder == point or point in folder.parents


def quota_cores(process: Path = _PROCESS) -> int | None:
    """Whole cores that the least quota of the process's groups gives, at least 1; None without."""
    quotas = [_quota(folder, version) for folder, version in _cpu_folders(process)]
    return min((max(1, int(each)) for each in quotas if each is not None), default=None)


_cpu_folders = functools.cache(functools.partial(group_folders, "cpu"))


def _quota(folder: Path, version: int) -> float | None:
    """Cores that a group's quota gives; None where it has none."""
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max", or there are no such files
        return None
    return cores if cores > 0 else None  # -1 says that there is none


_MIB = 2**20
# What LLVM 20 took on x86-64, the most for 157 kernels of 1 to 320 KB of text: compiling 1.8 MB and
# 36 bytes for each byte of text; linking 11 KB for each object beside twice its bytes.
_COMPILE_BYTES, _COMPILE_FACTOR = 4 * _MIB, 64
_LINK_BYTES, _LINK_EACH_BYTES, _LINK_FACTOR = 2 * _MIB, 32 * 1024, 4
# A thread that allocates is given a heap of its own by glibc, which reserves 128 MiB for it at
# first; without room for that it takes a page for each object.
_HEAP_BYTES = 128 * _MIB
_STACK_BYTES = 8 * _MIB  # where the system does not say
_THREAD_BYTES = 8 * _MIB  # that are left beside a new thread's stack, for Python's own data
_BUFFER_BYTES = 40 * _MIB  # OpenBLAS takes 32 MiB and a little at its first product
_PRODUCT_BYTES = 4 * _MIB  # and this at each, where it works on several threads
_NO_LIMIT = 2**60  # of a control group: larger numbers mean that there is none


_products_ready = False


class Need(NamedTuple):
    """The most memory of a step: bytes that it writes to, that it might, and that it only maps.

    `ulimit -v` counts them all, `ulimit -d` the first two, a control group those written to.
    """

    used: int
    writable: int = 0
    mapped: int = 0


class Left(NamedTuple):
    """Bytes that may still be taken, the limit, how to raise it, and the kinds that it counts."""

    bytes: int
    limit: str
    mend: str
    kinds: int  # how many of the fields of `Need`, from the first on


class _Group(NamedTuple):
    """The files of a control group that has a limit."""

    folder: Path
    limit: str
    usage: str
    cached: tuple[str, ...]  # rows of memory.stat: pages that the system takes back when it must


_GROUP_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_CACHED_1 = ("total_inactive_file", "total_active_file")
_GROUP_2, _CACHED_2 = ("memory.max", "memory.current"), ("inactive_file", "active_file")


def memory_left() -> tuple[Left, ...]:
    """Return the bytes that each limit leaves; empty if none is set or known."""
    return (*_resources_left(), *_groups_left())


def require(need: Need, what: str) -> None:
    """Check that a step's memory is left; LLVM would end the process in the midst of it.

    Args:
        need: the most that the step takes.
        what: the step, for the message.

    Raises:
        OutOfMemoryError: less is left.
    """
    for left in memory_left():
        needed = sum(need[: left.kinds])
        if left.bytes < needed:
            raise OutOfMemoryError(
                f"{what} takes up to {format_bytes(needed)} of memory, {left.limit} leaves "
                f"{format_bytes(max(0, left.bytes))}; {left.mend}, use fewer threads or a smaller "
                "model, or fill the cache folder in a process that has more (loading from it "
                "takes less)"
            )


def require_for_compiling(text: str) -> None:
    """Check that a kernel's text can be compiled, as `require` does."""
    needed = _COMPILE_BYTES + _COMPILE_FACTOR * len(text)
    require(Need(needed), f"compiling a kernel of {format_bytes(len(text))} of code")


def require_for_linking(objects: int, size: int) -> None:
    """Check that objects of `size` bytes together can be linked, as `require` does."""
    needed = _LINK_BYTES + _LINK_EACH_BYTES * objects + _LINK_FACTOR * size
    require(Need(needed), f"linking {objects} compiled kernels")


def require_for_products() -> None:
    """Have NumPy's BLAS take its buffer now, after a check that there is room, as `require` does.

    It takes one at its first product and a little at others, and ends the process where it gets
    none.
    """
    global _products_ready
    if not memory_left():
        return
    if _products_ready:
        require(Need(_PRODUCT_BYTES), "a product of NumPy's")
    else:
        require(Need(_PRODUCT_BYTES, _BUFFER_BYTES), "NumPy's first product of matrices")
        square = np.ones((256, 256), np.float32)
        np.matmul(square, square)
        _products_ready = True


def affordable_threads(most: int, allocating: bool) -> int:
    """Count the additional threads, up to `most`, that there is memory for.

    Args:
        most: number of threads that are wanted.
        allocating: whether they allocate as much as LLVM does.
    """
    each = Need(_THREAD_BYTES, _stack_bytes(), _HEAP_BYTES if allocating else 0)
    for left in memory_left():
        most = min(most, (left.bytes - _THREAD_BYTES) // sum(each[: left.kinds]))
    return max(0, most)


def _stack_bytes() -> int:
    chosen = threading.stack_size()
    if chosen or sys.platform == "win32":
        return chosen or _STACK_BYTES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _STACK_BYTES if soft == resource.RLIM_INFINITY else soft


def _resources_left() -> Iterator[Left]:
    """Yield what the process's resource limits leave, for each that is set."""
    if sys.platform != "linux":
        return
    import resource

    infinity, used = resource.RLIM_INFINITY, None
    limits = ((resource.RLIMIT_AS, 0, "-v", 3), (resource.RLIMIT_DATA, 5, "-d", 2))
    for number, field, option, kinds in limits:
        soft, _ = resource.getrlimit(number)
        if soft == infinity:
            continue
        used = used or Path("/proc/self/statm").read_text().split()
        left = soft - int(used[field]) * mmap.PAGESIZE
        yield Left(left, f"`ulimit {option}`", f"raise `ulimit {option}`", kinds)


def _groups_left() -> Iterator[Left]:
    """Yield what control groups leave: pages of files count as free, as does swap space."""
    for group in _limited_groups():
        try:
            limit = int((group.folder / group.limit).read_text())
            used = int((group.folder / group.usage).read_text())
            rows = (group.folder / "memory.stat").read_text().splitlines()
            stat = dict(row.split() for row in rows)
            cached = sum(int(stat.get(name, 0)) for name in group.cached)
        except (OSError, ValueError):  # the limit has gone meanwhile
            continue
        left = limit - used + cached + _swap_bytes()
        yield Left(left, f"the control group's {group.limit}", f"raise {group.limit}", 1)


def _swap_bytes() -> int:
    try:
        words = Path("/proc/meminfo").read_text().partition("SwapFree:")[2].split()
    except OSError:
        return 0
    return 1024 * int(words[0]) if words else 0


@functools.cache
def _limited_groups() -> tuple[_Group, ...]:
    """The control groups of this process that had a limit at the first call."""
    found = []
    for folder, version in group_folders("memory"):
        limit, usage = _GROUP_2 if version == 2 else _GROUP_1
        if _limited(folder / limit):
            cached = _CACHED_2 if version == 2 else _CACHED_1
            found.append(_Group(folder, limit, usage, cached))
    return tuple(found)


def _limited(file: Path) -> bool:
    try:
        return int(file.read_text()) < _NO_LIMIT
    except (OSError, ValueError):  # there is no such group here, or its limit is "max"
        return False
