"""Dense tensors of an ONNX file: in the file itself or in files beside it."""

from __future__ import annotations

import functools
import math
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from leanconv.errors import (
    InputError,
    LeanConvError,
    ModelError,
    SpecError,
    UnsupportedError,
    short,
)
from leanconv.files import open_regular, read_whole, reason
from leanconv.graph import onnx_schema as schema
from leanconv.graph.narrow_codes import NUMBERS, marked, packed_bytes, unpacked
from leanconv.graph.ops.base import MAX_RANK, Array
from leanconv.graph.wire import Message, Reader, fixed, integers
from leanconv.records import dataclass, field
from leanconv.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

_MAP_BYTES = 1 << 20
_FIELDS = {
    FLOAT32: "float_data",
    FLOAT64: "double_data",
    INT64: "int64_data",
    UINT32: "uint64_data",
    UINT64: "uint64_data",
}


def open_view(path: Path, what: type[LeanConvError]) -> memoryview:
    """The bytes of a regular file: mapped when large, read when small.

    Args:
        path: an existing file, with links resolved.
        what: the error to raise when it cannot be read.
    """
    try:
        with open_regular(path, wrong=what, follow=False) as file:
            if os.fstat(file.fileno()).st_size >= _MAP_BYTES:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            return memoryview(read_whole(file))
    except LeanConvError:
        raise
    except (OSError, ValueError) as error:
        raise what(f"{str(path)!r} cannot be read: {reason(error)}") from error


@dataclass(frozen=True, eq=False)
class GivenWeights:
    """Weights that a caller gives with a model, in place of those beside it.

    Attributes:
        folder: the one in which external files are; None for those of the model.
        files: contents of external files, by the locations that the model has for them.
        arrays: values of initializers by name.
    """

    folder: Path | None = None
    files: Mapping[str, memoryview] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)

    @staticmethod
    def checked(weights: Any) -> GivenWeights | None:
        """Check a user's weights, and copy what may change; None for nothing.

        Raises:
            InputError: the folder is none.
            SpecError: weights are neither a folder nor a mapping to bytes and arrays.
        """
        if weights is None or isinstance(weights, GivenWeights):
            return weights
        if isinstance(weights, str | os.PathLike):
            if not os.path.isdir(weights):
                raise InputError(f"weights is {short(weights)}, which is no folder; expected one")
            return GivenWeights(Path(os.fsdecode(weights)))
        files: dict[str, memoryview] = {}
        arrays: dict[str, np.ndarray] = {}
        expected = (
            "expected a folder, or a mapping from names of external files to bytes and from names "
            "of initializers to arrays"
        )
        if not isinstance(weights, Mapping):
            raise SpecError(f"weights is {short(weights)}; {expected}")
        for name, value in weights.items():
            if isinstance(name, str) and isinstance(value, np.ndarray):
                arrays[name] = value.copy() if value.flags.writeable else value
            elif isinstance(name, str) and isinstance(value, bytes | bytearray | memoryview):
                view = memoryview(value).cast("B")
                files[name] = view if view.readonly else memoryview(bytes(view))
            else:
                raise SpecError(f"weights has {short(name)}: {short(value)}; {expected}")
        return GivenWeights(None, files, arrays)


class ExternalFiles:
    """The files beside a model, opened once each; nothing outside its folders is touched.

    A model that is reached through a link has two folders: the one in which the link lies, and the
    one in which its bytes lie. So has the cache of Hugging Face, whose files are links into a
    folder of blobs. What is read lies, links resolved, in one of the two: a model that is a link
    reads what it could read from where its bytes lie, and links of an archive lead nowhere else.

    Args:
        model: the model's path as the user gave it; None for a model without files.
        given: the weights that the user gave with the model.
    """

    def __init__(self, model: Path | None, given: GivenWeights | None = None) -> None:
        self._model, self.given = model, given or GivenWeights()
        self._files = {PurePosixPath(name): data for name, data in self.given.files.items()}
        self._open: dict[PurePath, memoryview] = {}

    @property
    def used(self) -> bool:
        """Whether anything was read that lies not in the model itself."""
        return bool(self._open or self.given.arrays)

    @property
    def bytes(self) -> int:
        """The size of all files that were opened."""
        return sum(len(view) for view in self._open.values())

    def view(self, location: str, offset: int, length: int) -> memoryview:
        """The bytes [offset, offset + length) of a file.

        Raises:
            ModelError: the location leaves the folder, or the range leaves the file.
        """
        name = PurePosixPath(location)
        held = self._files.get(name)
        path = self._resolve(location) if held is None else name
        if path not in self._open:
            try:
                self._open[path] = open_view(Path(path), ModelError) if held is None else held
            except ModelError as error:
                raise ModelError(f"external data {location!r}: {error}") from error
        data = self._open[path]
        if offset < 0 or length < 0 or offset + length > len(data):
            raise ModelError(
                f"external data {location!r}: got offset {offset} and length {length}; expected "
                f"a range within its {len(data)} bytes"
            )
        return data[offset : offset + length]

    def _resolve(self, location: str) -> Path:
        if self._model is None and self.given.folder is None:
            raise ModelError(
                f"got external data {location!r} for a model given as bytes; expected all data "
                "inside; give the path of the model instead, or weights="
            )
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        parts = {*posix.parts, *windows.parts}
        if not location or posix.is_absolute() or windows.anchor or ".." in parts:
            raise ModelError(
                f"external data {location!r} is outside the model's folder; expected a relative "
                "path without '..'"
            )
        try:
            folders = self._folders()
            beside = folders[0] if os.path.lexists(folders[0] / location) else folders[-1]
            path = (beside / location).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"external data {location!r} cannot be read: {reason(error)}"
            ) from error
        if not any(path.is_relative_to(folder) for folder in folders):
            raise ModelError(
                f"external data {location!r} is a link to outside the model's folder; expected a "
                "file within it, or, where the model is a link itself, beside what that leads to"
            )
        return path

    def _folders(self) -> list[Path]:
        """Return the folders in which files may lie, links resolved."""
        if self.given.folder is not None:
            return [self.given.folder.resolve(strict=True)]
        assert self._model is not None, "there are no files then"
        return [self._model.parent.resolve(strict=True), self._model.resolve(strict=True).parent]


def dtype_of_number(number: int, what: str, *, narrow: bool = False) -> DType:
    """An element type by ONNX's number.

    Args:
        number: ONNX's.
        what: has such elements.
        narrow: whether types of at most 8 bits that are codes are taken.

    Raises:
        UnsupportedError: a type of ONNX that is not taken, or one that later versions may have.
        ModelError: no type of ONNX.
    """
    if number in schema.DTYPES:
        return schema.DTYPES[number]
    if narrow and number in NUMBERS:
        return NUMBERS[number]
    if number > 0:
        kind = schema.OTHER_DTYPES.get(number, f"{number}, which ONNX 1.23 does not have")
        raise UnsupportedError(
            f"{what} has elements of type {kind}; expected floats of 16 to 64 bits, integers of 8 "
            "to 64, or bool: cast it to one of these"
        )
    raise ModelError(f"{what} has the element type {number}; expected one of ONNX's, from 1 on")


def read_tensor(
    data: memoryview, reader: Reader, files: ExternalFiles, what: str
) -> tuple[str, Array]:
    """Decode a tensor: its name and a read-only array, a view of the file where possible.

    NumPy has no bfloat16: such numbers are float32 here. Types of at most 8 bits that NumPy lacks
    are codes, marked with what they are: see `graph.narrow_codes`.

    Raises:
        ModelError: dims and data do not fit each other, or the external data is not allowed.
        UnsupportedError: an element type that is not taken.
    """
    message = reader.message(data, schema.TENSOR, what)
    name = message.get("name", "")
    what = f"{what} {name!r}" if name else what
    number = message.get("data_type", 0)
    dtype = UINT16 if number == BFLOAT16.onnx else dtype_of_number(number, what, narrow=True)
    if "segment" in message:
        raise UnsupportedError(f"{what} is stored in segments; expected a whole tensor")
    dims = read_dims(message, what)
    narrow, count = dtype.held != dtype, math.prod(dims)
    size = packed_bytes(dtype, count) if narrow else count * dtype.bytes
    external = functools.partial(_external, message, size, reader, files, what)
    values = _values(message, UINT8 if narrow else dtype, external, what)
    if narrow:
        values = _narrow_values(dtype, dims, values, what)
    if number == BFLOAT16.onnx:  # the upper halves of float32 numbers
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if math.prod(dims) != values.size:
        raise ModelError(
            f"{what} has dims {dims}, {math.prod(dims)} elements, and data for {values.size}; "
            "expected as many; the file is damaged"
        )
    try:
        result = values.reshape(dims)
    except ValueError as error:  # without elements, but with extents that no array has
        raise ModelError(f"{what} has dims {dims} ({error}); expected smaller extents") from error
    result.flags.writeable = False
    return name, result


def read_dims(message: Message, what: str) -> tuple[int, ...]:
    """The extents of a tensor, dense or sparse.

    Raises:
        ModelError: they are too many, or negative.
    """
    dims = tuple(int(extent) for extent in integers(message["dims"], f"{what}.dims"))
    if len(dims) > MAX_RANK or any(extent < 0 for extent in dims):
        raise ModelError(
            f"{what} has dims {dims[: MAX_RANK + 1]}; expected at most {MAX_RANK} extents of at "
            "least 0"
        )
    return dims


def _narrow_values(dtype: DType, dims: tuple[int, ...], data: Array, what: str) -> Array:
    """Codes in one row, marked, of the bytes in which they are packed."""
    count = math.prod(dims)
    if len(data) != packed_bytes(dtype, count):
        raise ModelError(
            f"{what} has dims {dims}, {count} elements of {dtype}, and {len(data)} bytes of data; "
            f"expected {packed_bytes(dtype, count)}; the file is damaged"
        )
    return marked(unpacked(data, dtype, count), dtype)


def _values(message: Message, dtype: DType, external: Callable[[], memoryview], what: str) -> Array:
    """The elements in one row, of dtype `dtype`; `external` gives those of another file."""
    raw: memoryview | None = message.get("raw_data")
    if message.get("data_location", 0) == 1:
        raw = external()
    if raw is not None:
        little = np.dtype(dtype).newbyteorder("<")
        if len(raw) % little.itemsize:
            raise ModelError(
                f"{what} has {len(raw)} bytes of data; expected a multiple of {little.itemsize}"
            )
        if dtype == BOOL:
            return np.asarray(np.frombuffer(raw, np.uint8) != 0)
        values = np.frombuffer(raw, little)
        return values if little.isnative else values.astype(dtype)
    field = _FIELDS.get(dtype, "int32_data")
    if field in ("float_data", "double_data"):
        little = np.dtype(dtype).newbyteorder("<")
        return fixed(message[field], little.str, f"{what}.{field}").astype(dtype, copy=False)
    numbers = integers(message[field], f"{what}.{field}")
    if dtype == FLOAT16:
        return numbers.astype(np.uint16).view(np.float16)
    return numbers.astype(dtype)


def _external(
    message: Message, size: int, reader: Reader, files: ExternalFiles, what: str
) -> memoryview:
    """A tensor's bytes in another file: as many as the file says, or as the tensor has."""
    entries: dict[str, str] = {}
    for data in message["external_data"]:
        entry = reader.message(data, schema.ENTRY, f"{what}.external_data")
        entries[entry.get("key", "")] = entry.get("value", "")
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        written = entries.get(key, "")
        if written:
            if not (written.isascii() and written.isdigit() and len(written) < 20):
                raise ModelError(f"{what} has the external {key} {written[:40]!r}; expected bytes")
            numbers[key] = int(written)
    location = entries.get("location", "")
    return files.view(location, numbers.get("offset", 0), numbers.get("length", size))
