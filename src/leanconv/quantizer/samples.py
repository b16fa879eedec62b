"""Samples that a network is calibrated and verified on: read one by one, as often as needed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec, refuse_unsound, validated_input
from leanconv.api.sample_files import read_sample
from leanconv.errors import InputError, short
from leanconv.files import reason
from leanconv.graph.onnx_names import shown
from leanconv.records import dataclass

Arrays = Mapping[str, np.ndarray]
_ENDINGS = (".npy", ".npz")
_ROWS = 8  # at most, of a single array that is taken apart, to a sample


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs of a network, in two halves.

    Attributes:
        readers: one for each sample: what gives its arrays by the inputs' names.
    """

    readers: tuple[Callable[[], Arrays], ...]

    def __len__(self) -> int:
        return len(self.readers)

    def __iter__(self) -> Iterator[Arrays]:
        for read in self.readers:
            yield read()

    def first(self) -> Arrays:
        """The first sample."""
        return self.readers[0]()

    def half(self, number: int) -> Samples:
        """Every other sample, from the first (0) or the second (1) on; all where there is one."""
        found = self.readers[number::2] or self.readers
        return Samples(found)

    def numbers(self, number: int) -> list[int]:
        """Which samples `half` gives."""
        return list(range(len(self)))[number::2] or list(range(len(self)))


def checked_samples(samples: Any, inputs: Sequence[InputSpec]) -> Samples:
    """Samples as `lc.quantize` takes them.

    Args:
        samples: `Samples`; an array, arrays by the inputs' names, the path of a .npy or .npz file
            or of a folder of them; or an iterable of these. What can be iterated only once is kept
            in memory; files are read when they are needed, one at a time.
        inputs: of the network.

    Raises:
        InputError: there are none, or one does not fit the network.
    """
    if isinstance(samples, Samples):
        return samples
    readers = taken_apart([_reader(each, inputs) for each in _several(samples)], inputs)
    if not readers:
        raise InputError("got no samples; expected at least one: inputs as they will come")
    return Samples(tuple(readers))


def _several(samples: Any) -> Iterator[Any]:
    if isinstance(samples, str | os.PathLike):
        path = Path(samples)
        try:
            if not path.is_dir():
                yield path
                return
            found = sorted(each for each in path.iterdir() if each.suffix.lower() in _ENDINGS)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {reason(error)}") from error
        if not found:
            raise InputError(
                f"folder {str(path)!r} holds no samples; expected files .npy or .npz, written "
                "with np.save or np.savez"
            )
        yield from found
    elif isinstance(samples, np.ndarray | Mapping):
        yield samples
    elif isinstance(samples, Iterable):
        for each in samples:
            yield from _several(each) if isinstance(each, str | os.PathLike) else [each]
    else:
        raise InputError(
            f"samples is {short(samples)}; expected an array, arrays by the inputs' names, a path, "
            "or an iterable of these"
        )


def _reader(sample: Any, inputs: Sequence[InputSpec]) -> Callable[[], Arrays]:
    if isinstance(sample, Path):
        path: Path = sample
        return lambda: read_sample(path, inputs).arrays
    names = [spec.name for spec in inputs]
    arrays = sample if isinstance(sample, Mapping) else {names[0]: sample}
    if set(arrays) != set(names):
        given = ", ".join(sorted(map(str, arrays)))
        raise InputError(f"a sample holds {given}; expected {', '.join(names)}")
    found = {spec.name: validated_input(arrays[spec.name], spec) for spec in inputs}
    return lambda: found


def read_once(samples: Samples) -> None:
    """Read every sample once: what cannot be used is refused before the long work.

    Raises:
        InputError: one cannot be read, is empty, or has NaN or infinity.
    """
    for number, sample in enumerate(samples, 1):
        of = f"sample {number} of {len(samples)}"
        for name, array in sample.items():
            if not array.size:
                raise InputError(
                    f"{of}: input {shown(name)!r} is empty; expected images, at least one"
                )
        refuse_unsound(sample, of)


def taken_apart(
    readers: Sequence[Callable[[], Arrays]], inputs: Sequence[InputSpec]
) -> Sequence[Callable[[], Arrays]]:
    """A single sample of many images as samples of a few, where the batch is open."""
    if len(readers) != 1:
        return readers
    (read,) = readers
    arrays = read()
    counts = {len(a) if a.ndim else 0 for a in arrays.values()}
    is_open = all(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs)
    if not is_open or len(counts) != 1 or counts == {0} or counts == {1}:
        return readers

    def part(begin: int, end: int) -> Callable[[], Arrays]:
        return lambda: {name: a[begin:end] for name, a in read().items()}

    (count,) = counts
    if count <= _ROWS:
        return readers
    parts = 2 * math.ceil(count / (2 * _ROWS))  # an even number: two equal halves
    rows = math.ceil(count / parts)
    return [part(begin, begin + rows) for begin in range(0, count, rows)]
