"""Entries on disk that say which forms kernels have, so that none is emitted.

Entries of one kind belong to the kernels of a load, in order. They have a record for each, little
endian:

    digest of the form's text    32 bytes
    number of words              16 bits
    words                        64 bits each, the first one nearest to the argument table

Those of the other kind belong to a skeleton: its forms, in JSON, with the expressions of words and
guards as steps (`symbolic.expressions`), for kernels that no process has loaded together.

What is not exactly of this form is a miss: a digest only names an object, which the cache has or
has not, and an expression is made of bounded numbers, variables and arithmetic alone, of which
Python compiles and evaluates nothing as text.
"""

from __future__ import annotations

import functools
import json
import platform
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import WORD_KINDS, Form, FormRecord, Instance
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.skeletons import split
from leanconv.symbolic import Record

MOST_BYTES = 16 * 2**20  # of all entries; one of a large network has 20 KB
_HEAD = struct.Struct("<32sH")
_MOST_WORDS = 2**16 - 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@functools.cache
def entries_beside(objects: DiskCache) -> DiskCache:
    """The cache of entries, in the folder of the objects that they name."""
    return objects.beside(".forms", MOST_BYTES)


@functools.cache
def skeletons_beside(objects: DiskCache) -> DiskCache:
    """The cache of skeletons' entries, in the same folder."""
    return objects.beside(".skeleton", MOST_BYTES)


def description(kernels: Sequence[Kernel]) -> str | None:
    """What the forms of kernels depend on, but for the target and leanconv's own sources.

    None for kernels of others, whose sources may change: they are emitted by each process.
    """
    if not all(map(_ours, kernels)):
        return None
    texts = (f"{type(kernel).__module__}.{canonical_text(kernel)}" for kernel in kernels)
    return "\n".join((_versions("forms"), *texts))


def skeleton_description(kernel: Kernel) -> str | None:
    """The same for all forms of a kernel's skeleton."""
    if not _ours(kernel):
        return None
    text = f"{type(kernel).__module__}.{canonical_text(split(kernel)[0])}"
    return f"{_versions('skeleton')}\n{text}"


def _ours(kernel: Kernel) -> bool:
    return type(kernel).__module__.startswith("leanconv.")


def _versions(kind: str) -> str:
    return f"{kind}\n{platform.python_version()} {np.__version__}"


def packed(instances: Sequence[Instance]) -> bytes | None:
    """The entry of these instances; None if one has too many words for an entry."""
    if any(len(words) > _MOST_WORDS for _, words in instances):
        return None
    return b"".join(
        _HEAD.pack(bytes.fromhex(digest), len(words)) + struct.pack(f"<{len(words)}q", *words)
        for digest, words in instances
    )


def unpacked(body: bytes, count: int) -> list[Instance] | None:
    """The instances that an entry says so many kernels are; None if it says anything else."""
    found, at = [], 0
    try:
        for _ in range(count):
            digest, length = _HEAD.unpack_from(body, at)
            words = struct.unpack_from(f"<{length}q", body, at + _HEAD.size)
            found.append(Instance(digest.hex(), words))
            at += _HEAD.size + 8 * length
    except struct.error:  # it is shorter
        return None
    return found if at == len(body) else None


def packed_forms(forms: Sequence[Form]) -> bytes:
    """The entry of a skeleton's forms."""
    return json.dumps([form.record for form in forms], separators=(",", ":")).encode()


def unpacked_forms(body: bytes, variables: int) -> list[Form] | None:
    """The forms of an entry; None if it holds anything else.

    Args:
        body: the entry.
        variables: extents of the skeleton.
    """
    try:
        entry = json.loads(body)
        return [_form(variables, *held) for held in entry] if isinstance(entry, list) else None
    except (ValueError, TypeError, RecursionError):
        return None


def _form(variables: int, digest: Any, kinds: Any, numbers: Any) -> Form:
    """A form of what an entry holds.

    Raises:
        ValueError, TypeError: it is not one.
    """
    record = FormRecord(digest, tuple(kinds), Record.read(numbers, variables))
    known = all(kind in WORD_KINDS for kind in record.kinds)
    if not (known and len(record.kinds) == len(record.numbers.results)):
        raise ValueError("no kinds of words")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("no digest")
    return Form(record)
