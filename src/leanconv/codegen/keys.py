"""Keys of entries on disk: they cover all that an entry follows from, leanconv's sources too.

Compiled objects and forms follow from what emits code; choices, plans and measured times follow
from what decides, too. Each hash covers whole folders: all that the modules in them can import.
`tests/codegen/test_sources.py` follows the imports and fails where a file is left out.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from leanconv.canonical import canonical_text
from leanconv.codegen.host import llvm_facts
from leanconv.target import Target

PACKAGE = Path(__file__).parent.parent
EMITTING = (
    "",
    "algorithms",
    "codegen",
    "graph",
    "kernels",
    "runtime",
    "spec",
    "symbolic",
    "target",
    "winograd",
)
DECIDING = (*EMITTING, "operators", "planner")  # "" has the modules of the package itself
PLANNING = (*DECIDING, "api")


@functools.cache
def object_hash() -> str:
    """Hash of the sources that decide the emitted code, and of LLVM's version."""
    return sources_hash(PACKAGE, EMITTING)


@functools.cache
def choice_hash() -> str:
    """Hash of the sources that choose, plan or measure, and of those of `object_hash`."""
    only_deciding = [folder for folder in DECIDING if folder not in EMITTING]
    return _joined([object_hash(), sources_hash(PACKAGE, only_deciding)])


@functools.cache
def network_hash() -> str:
    """Hash of all sources that a planned network follows from."""
    rest = [folder for folder in PLANNING if folder not in DECIDING]
    return _joined([choice_hash(), sources_hash(PACKAGE, rest)])


def sources_hash(package: Path, folders: Sequence[str]) -> str:
    """Hash of the names and texts of all modules of some folders, and of LLVM's version."""
    parts = [llvm_facts().version]
    for name in source_files(package, folders):
        with open(f"{package}/{name}", "rb", buffering=0) as file:
            parts.append(f"{name} {hashlib.sha256(file.read()).hexdigest()}")
    return _joined(parts)


def source_files(package: Path, folders: Sequence[str]) -> Iterator[str]:
    """The modules of folders and those below, always in the same order; of "" those in it alone.

    As text, seen from the package: each first answer asks for 500, and paths take twice the time.
    """
    for folder in folders:
        for where, below, names in os.walk(package / folder):
            below[:] = sorted(each for each in below if each != "__pycache__") if folder else []
            inside = Path(where).relative_to(package).as_posix()
            yield from (f"{inside}/{name}" for name in sorted(names) if name.endswith(".py"))


def _joined(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key_of(description: str, target: Target) -> str:
    """Return the key of code that these sources emit for a target."""
    return _key(object_hash(), description, target)


def choice_key(description: str, target: Target) -> str:
    """Return the key of choices, plans or measurements by these sources for a target."""
    return _key(choice_hash(), description, target)


def network_key(description: str, target: Target) -> str:
    """Return the key of networks that these sources plan for a target."""
    return _key(network_hash(), description, target)


def _key(sources: str, description: str, target: Target) -> str:
    text = f"{sources}\n{_target_text(target)}\n{description}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


_target_text = functools.cache(canonical_text)
