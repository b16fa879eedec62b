"""Imports at first use, not before.

`leanconv.load` and the others of the package itself; the methods of convolution and the kernels,
of which a process whose code is all in the cache needs few: half of the time of an import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

from leanconv import forks
from leanconv.errors import BackendError, LeanConvError, out_of_memory

_Found = TypeVar("_Found")


def module(name: str) -> ModuleType:
    """Import a module of ours.

    Raises:
        OutOfMemoryError: there is not enough for it.
        BackendError: a module that it needs is not there, or not whole.
    """
    try:
        return forks.imported(name)
    except LeanConvError:
        raise
    except MemoryError as error:
        raise out_of_memory("importing leanconv", error) from error
    # Without memory libraries cannot be mapped, C code says nothing, Python's parser errs, and its
    # own modules (hashlib) keep what they could import, without the rest.
    except (AttributeError, ImportError, OSError, SystemError, SyntaxError, ValueError) as error:
        raise BackendError(
            f"leanconv cannot be loaded ({error}); expected NumPy and llvmlite, whole, and memory "
            "to map them: install them anew, or raise `ulimit -v`"
        ) from error


def named(place: str) -> Any:
    """Return an attribute of a module by its path: `"leanconv.algorithms.fft.FFT"`."""
    name, _, attribute = place.rpartition(".")
    return getattr(module(name), attribute)


class Late(Mapping[str, _Found]):
    """A table each of whose values is found when it is first asked for.

    Args:
        names: its keys.
        find: gives the value of one.
    """

    def __init__(self, names: Iterable[str], find: Callable[[str], _Found]) -> None:
        self._names, self._find = tuple(names), find
        self._found: dict[str, _Found] = {}

    def __getitem__(self, name: str) -> _Found:
        if name not in self._found:
            if name not in self._names:
                raise KeyError(name)
            self._found[name] = self._find(name)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
