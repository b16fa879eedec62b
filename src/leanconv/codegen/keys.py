"""Keys of what is kept on disk: they name all that it follows from."""

from __future__ import annotations

import functools
import hashlib

from leanconv.canonical import canonical_text
from leanconv.codegen.sources import choice_hash, object_hash
from leanconv.target import Target


def key_of(description: str, target: Target) -> str:
    """The key of what is emitted by these sources for a target."""
    return _key(object_hash(), description, target)


def choice_key(description: str, target: Target) -> str:
    """The key of what these sources choose, plan or measure for a target."""
    return _key(choice_hash(), description, target)


def _key(sources: str, description: str, target: Target) -> str:
    text = f"{sources}\n{_target_text(target)}\n{description}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


_target_text = functools.cache(canonical_text)
