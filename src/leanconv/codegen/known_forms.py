"""Forms of kernels that are known without emission, in this process and on disk.

This process knows the forms that it has emitted; the disk has entries of what others have. Those of
one kind belong to the kernels of a load, in order. They have a record for each, little endian:

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import (
    WORD_KINDS,
    Form,
    FormRecord,
    Instance,
    adopt,
    forms_of_skeleton,
    known_instance,
    split,
)
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import key_of
from leanconv.symbolic import Record
from leanconv.target import Target

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
    """Describe what the forms of kernels depend on, but for target and leanconv's own sources.

    None for kernels of others, whose sources may change: they are emitted by each process.
    """
    if not all(map(ours, kernels)):
        return None
    texts = (f"{type(kernel).__module__}.{canonical_text(kernel)}" for kernel in kernels)
    return "\n".join((_versions("forms"), *texts))


def skeleton_description(kernel: Kernel) -> str | None:
    """Describe what all forms of a kernel's skeleton depend on, as `description` does."""
    if not ours(kernel):
        return None
    text = f"{type(kernel).__module__}.{canonical_text(split(kernel)[0])}"
    return f"{_versions('skeleton')}\n{text}"


def ours(kernel: Kernel) -> bool:
    """Return whether a kernel's source is one of leanconv's, which keys on disk name."""
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
    """Make a form of the data of an entry.

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


def known_instances(
    kernels: Sequence[Kernel], target: Target, objects: DiskCache
) -> tuple[dict[Kernel, Instance], bool]:
    """The instances that are known without emission, and whether the next process knows them all.

    That is those of forms that this process has emitted; where a kernel has none, all those of the
    entry on disk, if some process has loaded the same kernels together, else those of the forms on
    disk of its skeleton.
    """
    found = _known_here(kernels, target)
    if len(found) == len(kernels):
        return found, True
    text = description(kernels)
    if text is None:
        return found, False
    entries, key = entries_beside(objects), key_of(text, target)
    body = entries.get(key)
    instances = unpacked(body, len(kernels)) if body is not None else None
    if instances:
        return dict(zip(kernels, instances, strict=True)), True
    if body is not None:
        entries.refuse(key)
    missing = [kernel for kernel in kernels if kernel not in found]
    _adopt_kept(_skeleton_keys(missing, target), target, objects)
    return found | _known_here(missing, target), False


def _adopt_kept(keys: Mapping[Kernel, str], target: Target, objects: DiskCache) -> None:
    """Take over the forms on disk of kernels' skeletons."""
    skeletons = skeletons_beside(objects)
    bodies = skeletons.get_all(keys.values())
    for kernel, key in keys.items():
        if key in bodies:
            forms = unpacked_forms(bodies[key], len(split(kernel)[1]))
            if forms is None:
                skeletons.refuse(key)
            else:
                adopt(kernel, target, forms)


def _known_here(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, Instance]:
    found = {kernel: known_instance(kernel, target) for kernel in kernels}
    return {kernel: instance for kernel, instance in found.items() if instance}


def _skeleton_keys(kernels: Iterable[Kernel], target: Target) -> dict[Kernel, str]:
    """The keys of the entries of kernels' skeletons, each skeleton once."""
    texts = {skeleton_description(kernel): kernel for kernel in kernels}
    return {kernel: key_of(text, target) for text, kernel in texts.items() if text is not None}


def remember(
    instances: Mapping[Kernel, Instance],
    emitted_now: Sequence[Kernel],
    target: Target,
    objects: DiskCache,
) -> None:
    """Keep the instances of kernels loaded together, and the forms of emitted skeletons.

    Forms that other processes have kept of these skeletons meanwhile stay.
    """
    text = description(list(instances))
    body = packed(list(instances.values())) if text is not None else None
    if text is not None and body is not None:
        entries_beside(objects).put(key_of(text, target), body)
    keys, skeletons = _skeleton_keys(emitted_now, target), skeletons_beside(objects)
    _adopt_kept(keys, target, objects)
    for kernel, key in keys.items():
        skeletons.put(key, packed_forms(forms_of_skeleton(kernel, target)))
