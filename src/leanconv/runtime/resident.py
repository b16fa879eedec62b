"""What of a process is in memory, by what it is, as the system counts it."""

from __future__ import annotations

import sys
from pathlib import Path

from leanconv.records import dataclass

_LLVM = "libllvmlite"
_MOST_BYTES = 64 * 2**20  # of the text: a process may have a million mappings


@dataclass(frozen=True)
class Resident:
    """Bytes of a process that are in memory.

    Attributes:
        llvm: of LLVM's library.
        libraries: of Python itself, NumPy and all other libraries, their variables included.
        files: of other mapped files: models whose weights are read in place, shared weights.
        other: of no file: Python's objects, arrays, what libraries have allocated.
    """

    llvm: int
    libraries: int
    files: int
    other: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.llvm + self.libraries + self.files + self.other


def resident() -> Resident | None:
    """What of this process is in memory; None where the system does not say (Linux alone does)."""
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as file:
            return counted_resident(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def counted_resident(text: str) -> Resident:
    """The bytes that a text in the form of `/proc/self/smaps` counts.

    A file of which any part may be run is a library.

    Raises:
        ValueError: the text has another form.
    """
    sizes: dict[str, int] = {}
    libraries: set[str] = set()
    path = ""
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):  # addresses, permissions, …, file
            permissions, *others = rest.split(maxsplit=4)
            path = others[3] if len(others) > 3 else ""
            if "x" in permissions:
                libraries.add(path)
        elif first == "Rss:":
            sizes[path] = sizes.get(path, 0) + int(rest.split()[0]) * 1024
    llvm = sum(size for path, size in sizes.items() if Path(path).name.startswith(_LLVM))
    named = {path: size for path, size in sizes.items() if path.startswith("/")}
    code = sum(size for path, size in named.items() if path in libraries) - llvm
    files = sum(named.values()) - code - llvm
    return Resident(llvm, code, files, sum(sizes.values()) - sum(named.values()))
