"""The control groups of Linux that this process is in, of version 1 and 2, and their CPU quota."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

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
    """Where a group lies below a mount that shows the groups below `root`.

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
