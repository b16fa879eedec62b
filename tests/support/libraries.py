"""Compiled libraries, run by ctypes with guard pages round all that they are given."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from support.guard_pages import Region
from support.onnx_models import Array

Feed = dict[str, Array]


class Instance:
    """A library in this process, with a block of its own.

    Args:
        file: a shared library.
        at: the side of each array, and of the block, that meets a page nobody may touch.

    Attributes:
        facts: what its JSON says.
    """

    def __init__(self, file: Path, at: str = "end") -> None:
        self.facts = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        self._library, self._at = ctypes.CDLL(str(file)), at
        self._name = self.facts["name"]
        size = self.call("arena_bytes", result=ctypes.c_size_t)
        assert size == self.facts["block_bytes"]
        self._block = Region(size, self.facts["block_alignment"], at=at)
        file_name, self._weights = self.facts["weights_file"], None
        given = []
        if file_name is not None:
            self._weights = Region((file.parent / file_name).stat().st_size, 64, at=at)
            self._weights.data[:] = np.fromfile(file.parent / file_name, np.uint8)
            given = [self._weights.address]
        assert self.call("init", self._block.address, *given) == 0

    def call(self, function: str, *addresses: int | None, result: Any = ctypes.c_int) -> int:
        """Call a function by its name without the prefix."""
        found = getattr(self._library, f"{self._name}_{function}")
        found.restype, found.argtypes = result, [ctypes.c_void_p] * len(addresses)
        return int(found(*addresses))

    def run(self, feed: Mapping[str, Array]) -> Feed:
        """Run a network for its inputs' shapes; nothing beside outputs and block is written.

        Raises:
            RuntimeError: the run fails.
        """
        shapes = {name: list(array.shape) for name, array in feed.items()}
        run = next(
            run
            for run in self.facts["runs"]
            if {each["name"]: each["shape"] for each in run["inputs"]} == shapes
        )
        function = run["function"].removeprefix(f"{self._name}_")
        arrays = [self._array(each, feed[each["name"]]) for each in run["inputs"]]
        results = [self._array(each, None) for each in run["outputs"]]
        pointers = (ctypes.c_void_p * (len(arrays) + len(results)))(
            *(region.address for region in arrays + results)
        )
        status = self.call(function, ctypes.addressof(pointers), self._block.address)
        if status:
            raise RuntimeError(f"the run returns {status}")
        for region in (*arrays, *results, self._block):
            region.check()
        return {
            each["name"]: np.frombuffer(region.data.tobytes(), dtype_of(each)).reshape(
                each["shape"]
            )
            for each, region in zip(run["outputs"], results, strict=True)
        }

    @property
    def addresses(self) -> tuple[int, int]:
        """Where its block is, and its weights where they are in a file."""
        return self._block.address, self._weights.address if self._weights else 0

    def close(self) -> None:
        """End its workers."""
        assert self.call("close", self._block.address) == 0

    def _array(self, value: Mapping[str, Any], given: Array | None) -> Region:
        region = Region(value["bytes"], dtype_of(value).itemsize, at=self._at)
        if given is not None:
            held = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
            assert held.nbytes == value["bytes"], value
            region.data[:] = held
        return region


def dtype_of(value: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type of a value that a library's JSON describes; bfloat16 as whole numbers."""
    return np.dtype("u2" if value["dtype"] == "bfloat16" else value["dtype"])


def check_as_loaded(
    model: Path | bytes,
    feeds: Sequence[Mapping[str, Array]],
    folder: Path,
    threads: int = 1,
    **options: Any,
) -> lc.CompiledLibrary:
    """Compile a model for the shapes of some feeds: bits are those of `load`, on either side."""
    shapes = [{name: array.shape for name, array in feed.items()} for feed in feeds]
    shapes = [each for i, each in enumerate(shapes) if each not in shapes[:i]]
    made = lc.compile(model, folder / "libnet.so", shapes=shapes, threads=threads, **options)
    shared = (
        "max_error",
        "precision",
        "reproducible",
        "memory_limit",
        "algorithms",
        "stream_weights",
    )
    given = {name: value for name, value in options.items() if name in shared}
    for feed in feeds:
        shape = {name: array.shape for name, array in feed.items()}
        net = lc.load(model, threads=threads, shapes=shape, **given)
        expected = net.run(feed)
        for at in ("end", "start"):
            instance = Instance(made.files[0], at)
            for _ in range(2):
                found = instance.run(feed)
                assert list(found) == list(expected)
                for each, array in expected.items():
                    bits = np.asarray(array).reshape(found[each].shape)
                    if bits.dtype != found[each].dtype:
                        bits = bits.view(found[each].dtype)
                    np.testing.assert_array_equal(found[each], bits, err_msg=each)
            instance.close()
    return made
