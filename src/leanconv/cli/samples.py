"""Arrays in files, which are not trusted, as inputs of a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leanconv.errors import InputError
from leanconv.files import open_regular
from leanconv.graph.file_kinds import FileKind, file_kind

if TYPE_CHECKING:
    from leanconv import Network

_MOST_BYTES = 4 * 2**30  # of one file of samples
_HEAD_BYTES = 4096  # that are looked at to tell what another file is


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


def read_sample(path: Path, network: Network) -> dict[str, np.ndarray]:
    """The arrays of a file, which is not trusted: nothing in it is unpickled."""
    names = [port.name for port in network.inputs]
    file = open_regular(path, _MOST_BYTES, what="sample", advice="split it into several files")
    try:
        with file:
            held = np.load(file, allow_pickle=False)
            if isinstance(held, np.lib.npyio.NpzFile):
                _check_unpacked(path, held)
            arrays = dict(held.items()) if hasattr(held, "items") else {names[0]: held}
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
    dtypes = {port.name: port.dtype for port in network.inputs}
    return {name: _as_dtype(path, name, array, dtypes[name]) for name, array in arrays.items()}


def _as_dtype(path: Path, name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """The array in a network's dtype; integers must hold its numbers exactly."""
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
    if np.dtype(dtype).kind != "f" and not np.array_equal(found, array):
        raise InputError(
            f"sample {path.name} holds {name} of {array.dtype}, of which {dtype} does not hold all "
            f"numbers; expected {dtype}"
        )
    return found
