"""A network that `leanconv.compile` wrote as a shared library, called by ctypes.

This module needs NumPy and nothing of leanconv: wheels of compiled networks hold a copy of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What functions of a library return that fail; bytes that its memory is aligned to.
NULL_POINTER, INDEX_OUTSIDE, WRONG_CPU, NOT_ALIGNED, WRONG_WEIGHTS, NOT_PREPARED = range(1, 7)
ALIGNMENT = 64

_process = os.getpid()
_starting = threading.RLock()


def _after_fork() -> None:
    global _process, _starting
    _process, _starting = os.getpid(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class SharedLibrary:
    """A compiled network with memory of its own, ready to run.

    Calls from several threads run in turn. What is opened twice runs twice at once: each has its
    own memory for values, and weights are in memory once. A forked process can use the networks
    of its parent.

    Args:
        path: of the library.
        name: the prefix of its functions.

    Attributes:
        facts: the library's own description.
        runs: for each set of shapes, what it takes and gives: a part of `facts`.

    Raises:
        OSError: the file cannot be loaded, or that of its weights.
        AttributeError: it has no functions of this name.
        ValueError, TypeError, LookupError: its description is damaged.
        RuntimeError: it is for another processor.
    """

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        code = ctypes.CDLL(os.path.abspath(path))
        text = ctypes.cast(code[f"{name}_json"], ctypes.c_char_p).value or b""
        self.facts: dict[str, Any] = json.loads(text)
        self.runs: list[dict[str, Any]] = self.facts["runs"]
        self._functions = {
            tuple(tuple(each["shape"]) for each in run["inputs"]): (code[run["function"]], run)
            for run in self.runs
        }
        self._types = {each["name"]: np.dtype(each["dtype"]) for each in self.runs[0]["inputs"]}
        size = code[f"{name}_arena_bytes"]
        size.restype = ctypes.c_size_t
        self._bytes: int = size()
        self._init, self._close = code[f"{name}_init"], code[f"{name}_close"]
        self._path, self._started_in = os.fspath(path), 0
        self._weights = self._mapped()
        self._end: Any = None
        self._start()

    def _mapped(self) -> list[np.ndarray]:
        """Return the weights that are in a file beside the library, if they are."""
        if not self.facts["weights_file"]:
            return []
        file = os.path.join(os.path.dirname(self._path), self.facts["weights_file"])
        if os.path.getsize(file) != self.facts["weight_bytes"]:
            raise OSError(f"{file} does not hold the weights of {self._path}")
        return [np.memmap(file, np.uint8, "r")]

    def _start(self) -> None:
        """Prepare memory to run in, and workers; in a forked process anew, which has neither."""
        with _starting:
            if self._started_in == _process:
                return
            if self._end is None or self._end.alive:
                # Of zeros, so that closing it before it is prepared does nothing.
                memory = np.zeros(self._bytes + ALIGNMENT, np.uint8)
                arena = ctypes.c_void_p(-(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT)
                weights = (ctypes.c_void_p(each.ctypes.data) for each in self._weights)
                end = weakref.finalize(self, _end, self._close, arena, memory, _process)
                result = self._init(arena, *weights)
                if result:
                    end.detach()  # code of another processor is not called again
                    self._check(result)
                if self._end:
                    self._end()
                self._end, self._arena = end, arena
            self._lock, self._started_in = threading.RLock(), _process

    @property
    def _held(self) -> threading.RLock:
        """The lock of a run, not taken yet."""
        if self._started_in != _process:
            self._start()
        return self._lock

    def run(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Run the network.

        Args:
            inputs: an array for each input by name, or the array of the only input.

        Returns:
            New arrays of all outputs, by name.

        Raises:
            ValueError: an array does not fit, or the network refuses its values.
        """
        given = inputs if isinstance(inputs, Mapping) else dict.fromkeys(self._types, inputs)
        if given.keys() != self._types.keys() or (given is not inputs and len(given) > 1):
            got = list(given) if given is inputs else "one array"
            raise ValueError(f"got {got}; expected arrays by name: {list(self._types)}")
        for name, kind in self._types.items():
            found = getattr(given[name], "dtype", type(given[name]).__name__)
            if not isinstance(given[name], np.ndarray) or found != kind:
                raise ValueError(f"input {name!r} is of {found}; expected an array of {kind}")
        arrays = [np.require(given[name], requirements=["C", "A"]) for name in self._types]
        names = [each["name"] for each in self.runs[0]["outputs"]]
        return dict(zip(names, self.computed(arrays), strict=True))

    def computed(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return all outputs for arrays of the right types, contiguous and aligned, in their order.

        Raises:
            ValueError: the library is for other shapes, the network refuses values, or it is
                closed.
        """
        shapes = tuple(array.shape for array in arrays)
        if shapes not in self._functions:
            got, *expected = (
                ", ".join(map("{} {}".format, self._types, each))
                for each in (shapes, *self._functions)
            )
            raise ValueError(f"got the shapes {got}; expected {' or '.join(expected)}")
        function, run = self._functions[shapes]
        outputs = [np.empty(each["shape"], each["dtype"]) for each in run["outputs"]]
        places = [each.__array_interface__["data"][0] for each in (*arrays, *outputs)]
        io = (ctypes.c_void_p * len(places))(*places)
        with self._held:
            if not self._end.alive:
                raise ValueError(f"{self._path} is closed; expected it open")
            self._check(function(io, self._arena), run)
        return outputs

    def close(self) -> None:
        """End the workers and give the memory back; a run that another thread is in ends first."""
        with self._held:
            self._end()

    def __enter__(self) -> SharedLibrary:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check(self, result: int, run: Mapping[str, Any] | None = None) -> None:
        """Raise what a function's result says."""
        if result == INDEX_OUTSIDE and run is not None:
            for each in run["plans"][self._word(self.facts["target_at"])]["indices"]:
                index = self._word(each["at"])
                if index:
                    raise ValueError(each["text"].replace("{index}", str(index)))
        if result == WRONG_CPU:
            targets = (f"{each['cpu']} ({each['isa']})" for each in self.facts["targets"])
            raise RuntimeError(
                f"{self._path} is for {' or '.join(targets)}, and this processor lacks some of "
                "the instructions; expected a network compiled for it"
            )
        if result == WRONG_WEIGHTS:
            file = self.facts["weights_file"]
            raise OSError(f"{file} holds other weights than {self._path}'s, or is damaged")
        if result:
            raise RuntimeError(f"{self._path} fails, with {result}")

    def _word(self, at: int) -> int:
        return ctypes.c_int64.from_address((self._arena.value or 0) + at).value


def _end(close: Any, arena: ctypes.c_void_p, memory: np.ndarray, process: int) -> None:
    """End the workers, which are those of one process; the memory goes with the last reference."""
    if process == _process:
        close(arena)
    del memory
