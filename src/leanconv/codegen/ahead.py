"""The code of all kernels that a range of shapes needs, compiled or fetched before they are called.

Which forms a range has is found once, from the kernels of all its shapes, and kept on disk: an
entry names the objects, 40 digits each. Later processes load them without a look at the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from leanconv.codegen import compiler, form_entries
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.forms import instance_of
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import choice_key, key_of
from leanconv.codegen.linking import Batch, load_forms, loaded, lock
from leanconv.target import Target

_MOST_BYTES = 4 * 2**20  # of all entries
_DIGITS = 40


class CodeAhead:
    """Code that stays loaded as long as this is kept.

    Args:
        target: what to compile for.

    Attributes:
        forms, compiled: how many the range has, and how many of them were compiled for it.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kernels: dict[str, Kernel] = {}  # one of each form
        self._kept: list[object] = []
        self.forms = self.compiled = 0

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Take note of the forms of kernels."""
        with lock:
            for kernel in kernels:
                digest = instance_of(kernel, self._target).digest
                self._kernels.setdefault(digest, kernel)
            self.forms = len(self._kernels)

    def compile(self, description: str) -> None:
        """Compile what is missing, load it all, and keep on disk what the range has."""
        library = compiler.load(list(self._kernels.values()), self._target)
        self._kept.append(library)
        self.compiled = library.compiled
        keys = [key_of(digest, self._target) for digest in self._kernels]
        _ranges().put(choice_key(description, self._target), "".join(keys).encode())

    def fetch(self, description: str) -> bool:
        """Load the code of a range that was compiled before; whether all of it is there."""
        body = _ranges().get(choice_key(description, self._target))
        if body is None or len(body) % _DIGITS:
            return False
        digits = body.decode("ascii", "replace")
        keys = [digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS)]
        with lock:
            batches = {key: loaded(key) for key in keys}
            missing = [key for key, batch in batches.items() if batch is None]
            objects = compiler.object_cache().get_all(missing)
            if len(objects) < len(missing):
                return False
            held: Sequence[Batch | None] = [load_forms(objects)] if objects else []
            self._kept += [*batches.values(), *held]
        self.forms = len(keys)
        return True


@functools.cache
def _ranges() -> DiskCache:
    return compiler.object_cache().beside(".range", _MOST_BYTES)


def described(kernels: Sequence[Kernel]) -> str:
    """What the forms of a range's ends depend on, besides the target and the generator."""
    return form_entries.description(kernels) or ""
