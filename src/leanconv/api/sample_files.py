"""Arrays in files, which are not trusted, as inputs of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from leanconv.api.inputs import InputSpec, input_mend
from leanconv.errors import InputError
from leanconv.files import open_regular, reason
from leanconv.graph.file_kinds import FileKind, file_kind
from leanconv.records import dataclass
from leanconv.units import type_text

_MOST_BYTES = 4 * 2**30  # of one file of samples
_HEAD_BYTES = 4096  # that are looked at to tell what another file is


@dataclass(frozen=True)
class Sample:
    """Inputs of a network.

    Attributes:
        arrays: by the inputs' names, in their dtypes.
        notes: what was converted, as text for a user.
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


def _unread(name: str, found: FileKind | None, error: Exception) -> InputError:
    """What is said of a sample that NumPy cannot read."""
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
        raise _unread(path.name, found, error) from error
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
        f"{name} is {array.dtype}, converted to {given[name].dtype}{_kept(array, given[name])}"
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


def _kept(array: np.ndarray, found: np.ndarray) -> str:
    """How a network computes in the dtype that an array was converted from, where it can."""
    kept = array.dtype == np.float64 and found.dtype == np.float32
    return " (--dtype float64 computes in float64)" if kept else ""
