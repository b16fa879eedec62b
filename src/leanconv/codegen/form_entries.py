"""Entries on disk that say which forms the kernels of a load have, so that none is emitted.

An entry belongs to the kernels of one load, in order. It has a record for each, little endian:

    digest of the form's text    32 bytes
    number of words              16 bits
    words                        64 bits each, the first one nearest to the argument table

Nothing in it is evaluated: what is not exactly of this form is a miss, and a digest only names an
object, which the cache has or has not.
"""

from __future__ import annotations

import functools
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.kernel import Kernel

MOST_BYTES = 16 * 2**20  # of all entries; one of a large network has 20 KB
_HEAD = struct.Struct("<32sH")


class KnownForm(NamedTuple):
    """A form's digest, in hexadecimal, and a kernel's words."""

    digest: str
    words: tuple[int, ...]


@functools.cache
def entries_beside(objects: DiskCache) -> DiskCache:
    """The cache of entries, in the folder of the objects that they name."""
    return objects.beside(".forms", MOST_BYTES)


def description(kernels: Sequence[Kernel]) -> str | None:
    """What the forms of kernels depend on, but for the target and leanconv's own sources.

    None for kernels of others, whose sources may change: they are emitted by each process.
    """
    if not all(type(kernel).__module__.startswith("leanconv.") for kernel in kernels):
        return None
    versions = f"forms\n{platform.python_version()} {np.__version__}"
    texts = (f"{type(kernel).__module__}.{canonical_text(kernel)}" for kernel in kernels)
    return "\n".join((versions, *texts))


def packed(forms: Sequence[KnownForm]) -> bytes:
    """The entry of these forms.

    Raises:
        struct.error: a word has more than 64 bits, or there are too many.
    """
    return b"".join(
        _HEAD.pack(bytes.fromhex(digest), len(words)) + struct.pack(f"<{len(words)}q", *words)
        for digest, words in forms
    )


def unpacked(body: bytes, count: int) -> list[KnownForm] | None:
    """The forms that an entry says so many kernels have; None if it says anything else."""
    found, at = [], 0
    try:
        for _ in range(count):
            digest, length = _HEAD.unpack_from(body, at)
            words = struct.unpack_from(f"<{length}q", body, at + _HEAD.size)
            found.append(KnownForm(digest.hex(), words))
            at += _HEAD.size + 8 * length
    except struct.error:  # it is shorter
        return None
    return found if at == len(body) else None
