"""Samples of a network's inputs: read one by one, as often as needed, and of files not trusted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec, input_mend, refuse_unsound, validated_input
from leanconv.errors import InputError, short, shown
from leanconv.files import open_regular, reason
from leanconv.graph.file_kinds import FileKind, file_kind
from leanconv.records import dataclass
from leanconv.units import type_text

Arrays = Mapping[str, np.ndarray]
_ENDINGS = (".npy", ".npz")
_ROWS = 8  # at most, of a single array that is taken apart, to a sample
_MOST_BYTES = 4 * 2**30  # of one file of samples
_HEAD_BYTES = 4096  # that are looked at to tell what another file is


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs of a network, in two halves.

    Attributes:
        readers: of each sample, the function that returns its arrays by the inputs' names.
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
        """Return the numbers of the samples of `half`."""
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


@dataclass(frozen=True)
class Sample:
    """Inputs of a network.

    Attributes:
        arrays: by the inputs' names, in their dtypes.
        notes: conversions, as text for a user.
    """

    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()


def _check_unpacked(path: Path, bundle: np.lib.npyio.NpzFile) -> None:
    """Refuse a bundle that is small only as long as it is compressed."""
    size = sum(member.file_size for member in bundle.zip.infolist()) if bundle.zip else 0
    if size > _MOST_BYTES:
        raise InputError(
            f"sample {path.name} has {size} bytes when unpacked; expected at most {_MOST_BYTES} "
            "bytes; split it into several files"
        )


def _unreadable(name: str, found: FileKind | None, error: Exception) -> InputError:
    other = found if found and not found.arrays else None
    # NumPy takes what is no array for a pickle, and tells how to load that, which nobody should.
    why = "it holds no arrays of numbers" if "pickle" in str(error) else str(error)
    return InputError(
        f"sample {name} {f'is {other.what}' if other else f'cannot be read ({why})'}; expected "
        ".npy or .npz of numbers: write them with np.save or np.savez"
        + ("; a picture is read as one under its own ending" if other and other.picture else "")
    )


def read_sample(
    path: Path,
    inputs: Sequence[InputSpec],
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Sample:
    """The arrays of a file, which is not trusted: nothing in it is unpickled.

    Args:
        path: of a .npy or .npz file.
        inputs: of the network.
        values: of some of them, which the file need not hold and which it does not change.

    Floats of another size are converted, which a note says; integers for an input of floats are
    refused, since nobody knows their scale.

    Raises:
        InputError: the file cannot be opened, holds no arrays of numbers, not those of the network,
            or numbers that the inputs' dtypes do not hold.
    """
    names = [port.name for port in inputs]
    left = [name for name in names if name not in values]
    try:
        file = open_regular(path, _MOST_BYTES, what="sample", advice="split it into several files")
    except (OSError, ValueError) as error:
        raise InputError(f"sample {str(path)!r} cannot be read: {reason(error)}") from error
    try:
        with file:
            held = np.load(file, allow_pickle=False)
            if isinstance(held, np.lib.npyio.NpzFile):
                _check_unpacked(path, held)
            arrays = dict(held.items()) if hasattr(held, "items") else {(left or names)[0]: held}
            arrays.update(values)
    except InputError:
        raise
    except Exception as error:  # NumPy and zipfile raise whatever a damaged file leads to
        with open_regular(path) as file:
            found = file_kind(file.read(_HEAD_BYTES))
        raise _unreadable(path.name, found, error) from error
    if set(arrays) != set(names):
        raise InputError(
            f"sample {path.name} holds {', '.join(sorted(arrays))}; expected {', '.join(names)}: "
            f"write them with np.savez(FILE, {', '.join(f'{n}=…' for n in names)})"
        )
    for name, array in arrays.items():
        kind = getattr(array, "dtype", np.dtype(object))  # bytes, where NumPy knows no better
        if kind.kind not in "biuf":
            raise InputError(
                f"sample {path.name} holds {name} of {kind}; expected real numbers: convert it "
                "with astype"
            )
    ports = {port.name: port for port in inputs}
    given = {name: _as_declared(path, array, ports[name]) for name, array in arrays.items()}
    notes = tuple(
        f"{name} is {array.dtype}, converted to {given[name].dtype}{_hint(array, given[name])}"
        for name, array in arrays.items()
        if not np.can_cast(array.dtype, given[name].dtype)
    )
    return Sample(given, notes)


def _as_declared(path: Path, array: np.ndarray, port: InputSpec) -> np.ndarray:
    """The array in an input's dtype, or that of its codes; integers must hold its numbers."""
    dtype = np.dtype(port.dtype.held)
    if dtype.kind == "f" and array.dtype.kind != "f":
        raise InputError(
            f"sample {path.name} holds {port.name} of {type_text(array.dtype, array.shape)}; "
            f"expected {type_text(port.dtype, port.shape)}{input_mend(array, port)}"
        )
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(found, array):
        raise InputError(
            f"sample {path.name} holds {port.name} of {array.dtype}, of which {dtype} does not "
            f"hold all numbers; expected {dtype}"
        )
    return found


def _hint(array: np.ndarray, found: np.ndarray) -> str:
    kept = array.dtype == np.float64 and found.dtype == np.float32
    return " (--dtype float64 computes in float64)" if kept else ""
