"""The Open Inference Protocol v2: from a request's bytes to arrays, and from results to bytes.

A body is JSON, behind which raw tensors may follow (the binary tensor data extension):

    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
    {"inputs": [{…, "parameters": {"binary_data_size": 12}}]}<12 bytes>

In the second form the header `Inference-Header-Content-Length` says where JSON ends. A member that
is null is as if it were not there. Nothing in a request is trusted: sizes are compared with what is
there, and what does not fit is answered by 400.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.errors import UnsupportedError, short
from leanconv.graph.ops.base import MAX_RANK
from leanconv.records import dataclass
from leanconv.server.limits import BAD, NO_FORM, RefusedError
from leanconv.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    as_dtype,
)

NAMES: Mapping[DType, str] = {
    BOOL: "BOOL",
    **{each: each.upper() for each in (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)},
    FLOAT16: "FP16",
    BFLOAT16: "BF16",
    FLOAT32: "FP32",
    FLOAT64: "FP64",
}
JSON_LENGTH = "inference-header-content-length"
_LONGEST_ID = 1000  # characters
_PIECE = 4096  # numbers that become text at once
_JSON_FIRST = (
    "a JSON object in UTF-8 that names the inputs; raw tensors come behind it, where their "
    f"binary_data_size and the header {JSON_LENGTH} (bytes of JSON) say so"
)
_EITHER = "either data or the parameter binary_data_size"


def datatype(spec: InputSpec, array: np.ndarray) -> str:
    """The type of an output: its array's, which need not be what the file says, if it says one."""
    given = as_dtype(array.dtype)
    return NAMES[spec.dtype if spec.dtype.held == given else given]


def check_types(specs: Iterable[InputSpec]) -> None:
    """Refuse inputs and outputs of a type that the protocol lacks.

    Raises:
        UnsupportedError: naming the input or output.
    """
    for spec in specs:
        if spec.dtype not in NAMES:
            raise UnsupportedError(
                f"{spec.name!r} is of {spec.dtype}, which the Open Inference Protocol lacks; "
                f"expected one of {', '.join(NAMES)}: add a Cast to the file"
            )


def described(specs: Sequence[InputSpec]) -> list[dict[str, Any]]:
    """Inputs or outputs as metadata."""
    return [
        {
            "name": spec.name,
            "datatype": NAMES[spec.dtype],
            "shape": extents(spec),
        }
        for spec in specs
    ]


def extents(spec: InputSpec) -> list[int]:
    """A shape as the protocol has it: -1 for an open extent, [-1] for an open rank."""
    if spec.shape is None:
        return [-1]
    return [extent if isinstance(extent, int) else -1 for extent in spec.shape]


@dataclass(frozen=True)
class Inference:
    """A request, decoded.

    Attributes:
        id: that the answer repeats; None where there is none.
        arrays: in the order of the model's inputs.
        outputs: indices of the outputs wanted, each with whether its numbers are to be raw bytes.
    """

    id: str | None
    arrays: tuple[np.ndarray, ...]
    outputs: tuple[tuple[int, bool], ...]


def decode(
    body: memoryview,
    json_length: int,
    inputs: Sequence[InputSpec],
    outputs: Sequence[InputSpec],
) -> Inference:
    """Read a request.

    Args:
        body: all of it; arrays are views of it where their elements are aligned.
        json_length: how many bytes are JSON.
        inputs, outputs: of the model.

    Raises:
        RefusedError: the request is malformed, or asks for something that the model has not.
    """
    if json_length > len(body):
        raise _bad(f"{JSON_LENGTH} {json_length} of {len(body)} bytes", "at most as many")
    if body and not json_length:
        raise _bad(f"{len(body)} raw bytes without JSON", _JSON_FIRST)
    document = _object(_json(body[:json_length]), "the request")
    given = _by_name(document.get("inputs"), [spec.name for spec in inputs], "input")
    missing = [spec.name for spec in inputs if spec.name not in given]
    if missing:
        raise _bad(f"no input {missing[0]!r}", f"all of {_names(inputs)}")
    rest = body[json_length:]
    arrays, used = {}, 0
    specs = {spec.name: spec for spec in inputs}
    for name, tensor in given.items():  # in the request's order, which is that of the raw bytes
        size = _size(tensor, f"input {name!r}")
        if size is not None and size > len(rest) - used:
            raise _bad(
                f"input {name!r} has binary_data_size {size}, {len(rest) - used} bytes are left",
                "as many bytes behind the JSON",
            )
        raw = None if size is None else rest[used : used + size]
        arrays[name] = _array(tensor, raw, specs[name])
        used += size or 0
    if used != len(rest):
        raise _bad(f"{len(rest)} bytes behind the JSON, of which inputs name {used}", "all of them")
    return Inference(
        _id(document.get("id")),
        tuple(arrays[spec.name] for spec in inputs),
        _wanted(document, outputs),
    )


def encode(
    head: Mapping[str, Any],
    wanted: Sequence[tuple[int, bool]],
    outputs: Sequence[InputSpec],
    results: Sequence[np.ndarray],
) -> tuple[bytes, int | None]:
    """An answer's body.

    Args:
        head: the model's name and version, the request's id.
        wanted: as in `Inference`.
        outputs: of the model.
        results: its arrays, for all outputs.

    Returns:
        The bytes, and how many are JSON: None for all.

    Raises:
        RefusedError: JSON cannot hold the numbers.
    """
    text, raw = [json.dumps({**head, "outputs": []}).encode()[:-2]], []
    for number, (index, binary) in enumerate(wanted):
        spec, array = outputs[index], np.ascontiguousarray(results[index])
        tensor: dict[str, Any] = {"name": spec.name, "datatype": datatype(spec, array)}
        tensor["shape"] = list(results[index].shape)
        text += [b", "] if number else []
        if binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            raw.append(array.reshape(-1).view(np.uint8).data)
            text.append(json.dumps(tensor).encode())
        else:
            text.append(json.dumps({**tensor, "data": []}).encode()[:-2])
            text += _numbers_as_text(array.reshape(-1), spec)
            text.append(b"]}")
    text.append(b"]}")
    body = b"".join([*text, *raw])
    return body, sum(map(len, text)) if raw else None


def _numbers_as_text(flat: np.ndarray, spec: InputSpec) -> list[bytes]:
    """JSON of numbers, piece by piece, so that Python has few of them as objects at once."""
    if spec.dtype == BFLOAT16 or (spec.dtype.is_float and not np.isfinite(flat).all()):
        what = spec.dtype if spec.dtype == BFLOAT16 else "NaN or infinities"
        raise RefusedError(
            NO_FORM, f"output {spec.name!r} holds {what}, which JSON lacks; ask for binary data"
        )
    text: list[bytes] = []
    for first in range(0, len(flat), _PIECE):
        text += [b", "] if first else []
        text.append(json.dumps(flat[first : first + _PIECE].tolist()).encode()[1:-1])
    return text


# -- parts of a request ----------------------------------------------------------------------------
def _json(text: memoryview) -> Any:
    try:
        return json.loads(str(text, "utf-8"), object_hook=_without_nulls)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise _bad(f"no JSON ({short(str(error))})", _JSON_FIRST) from error


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in members.items() if member is not None}


def _object(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _bad(f"{what} is {short(found)}", "a JSON object")
    return found


def _by_name(found: Any, known: Sequence[str], kind: str) -> dict[str, Mapping[str, Any]]:
    if not isinstance(found, list) or len(found) > len(known):
        got = f"{len(found)} {kind}s" if isinstance(found, list) else f"{kind}s {short(found)}"
        raise _bad(got, f"a list of at most {len(known)}")
    named: dict[str, Mapping[str, Any]] = {}
    for each in found:
        tensor = _object(each, f"one of the {kind}s")
        name = tensor.get("name")
        if not isinstance(name, str) or name not in known or name in named:
            raise _bad(f"{kind} {short(name)}", f"each once of {', '.join(map(repr, known))}")
        parameters = _object(tensor.get("parameters", {}), f"parameters of {kind} {name!r}")
        for refused in ("shared_memory_region", "classification"):
            if refused in parameters:
                raise _bad(f"{refused} for {name!r}", "none: this server does not offer it")
        named[name] = tensor
    return named


def _id(found: Any) -> str | None:
    if found is not None and not (isinstance(found, str) and len(found) <= _LONGEST_ID):
        raise _bad(f"id {short(found)}", f"text of at most {_LONGEST_ID} characters")
    return found


def _wanted(
    document: Mapping[str, Any], outputs: Sequence[InputSpec]
) -> tuple[tuple[int, bool], ...]:
    """The outputs that a request names, all of them where it names none."""
    parameters = _object(document.get("parameters", {}), "parameters")
    binary = _flag(parameters, "binary_data_output", False)
    names = [spec.name for spec in outputs]
    named = _by_name(document.get("outputs", []), names, "output")
    if not named:
        return tuple((index, binary) for index in range(len(names)))
    return tuple(
        (names.index(name), _flag(tensor.get("parameters", {}), "binary_data", binary))
        for name, tensor in named.items()
    )


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise _bad(f"{name} {short(found)}", "true or false")
    return found


def _size(tensor: Mapping[str, Any], what: str) -> int | None:
    """The `binary_data_size` of a tensor; None where it has `data`."""
    size = tensor.get("parameters", {}).get("binary_data_size")
    if (size is None) != ("data" in tensor):
        raise _bad(f"{what} with {'both' if 'data' in tensor else 'neither'}", _EITHER)
    if size is not None and not (type(size) is int and size >= 0):
        raise _bad(f"{what} with binary_data_size {short(size)}", "a number of bytes")
    return size


# -- tensors ---------------------------------------------------------------------------------------
def _array(tensor: Mapping[str, Any], raw: memoryview | None, spec: InputSpec) -> np.ndarray:
    datatype, expected = tensor.get("datatype"), NAMES[spec.dtype]
    if datatype != expected:
        raise _bad(f"input {spec.name!r} of datatype {short(datatype)}", expected)
    shape = _shape(tensor.get("shape"), spec)
    count = math.prod(shape)
    kind = np.dtype(spec.dtype.numpy)
    if raw is None:
        return _numbers(tensor["data"], shape, spec, kind)
    if len(raw) != count * kind.itemsize:
        raise _bad(
            f"{len(raw)} bytes for input {spec.name!r} of shape {list(shape)}",
            f"{count * kind.itemsize}",
        )
    if spec.dtype == BOOL and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
        raise _bad(f"input {spec.name!r} with other bytes than 0 and 1", "truth values")
    array = np.frombuffer(raw, kind).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _shape(found: Any, spec: InputSpec) -> tuple[int, ...]:
    fine = isinstance(found, list) and len(found) <= MAX_RANK
    if not fine or not all(type(extent) is int and 0 <= extent < 2**40 for extent in found):
        raise _bad(f"input {spec.name!r} of shape {short(found)}", "a list of extents")
    if math.prod(extent or 1 for extent in found) >= 2**59:  # NumPy's bound, beside an extent of 0
        raise _bad(f"input {spec.name!r} of shape {short(found)}", "fewer elements")
    shape = tuple(found)
    if not spec.takes(shape):
        what = f"input {spec.name!r} of shape {list(shape)}"
        raise _bad(what, f"{extents(spec)}, where -1 is any")
    return shape


def _numbers(data: Any, shape: tuple[int, ...], spec: InputSpec, kind: np.dtype) -> np.ndarray:
    """The array of numbers in JSON, flat or nested as the shape says."""
    what = f"data of input {spec.name!r}"
    if spec.dtype == BFLOAT16:
        raise _bad(f"{what} as JSON", "binary data: JSON has no bfloat16")
    if not isinstance(data, list):
        raise _bad(f"{what} {short(data)}", "a list of numbers")
    flat, found = _flat(data, what)
    if not _holds(spec.dtype, flat):
        raise _bad(f"{what} of other elements", f"numbers that {NAMES[spec.dtype]} holds")
    if len(flat) != math.prod(shape) or found not in ((len(flat),), shape):
        raise _bad(f"{what} of shape {list(found)}", f"{list(shape)}, or as many in a flat list")
    try:
        array = np.array(flat, np.float64 if spec.dtype.is_float else kind)
    except OverflowError as error:
        raise _bad(f"{what} beyond float64", "smaller numbers") from error
    with np.errstate(over="ignore"):
        return array.reshape(shape).astype(kind, copy=False)


def _flat(data: list[Any], what: str) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists, and their shape.

    NumPy is given only what is known to be numbers: of texts it would make an array in which each
    is as long as the longest.
    """
    shape = [len(data)]
    while set(map(type, data)) == {list}:
        lengths = set(map(len, data))
        if len(lengths) > 1 or len(shape) == MAX_RANK:
            raise _bad(f"{what} in lists of unequal lengths, or too deep", "an array's")
        shape.append(lengths.pop())
        data = list(chain.from_iterable(data))
    return data, tuple(shape)


def _holds(dtype: DType, flat: list[Any]) -> bool:
    kinds = set(map(type, flat))
    if dtype == BOOL:
        return kinds <= {bool}
    if dtype.is_float:
        return kinds <= {int, float}
    return kinds <= {int} and (not flat or (dtype.low <= min(flat) and max(flat) <= dtype.high))


def _names(specs: Sequence[InputSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def _bad(got: str, expected: str) -> RefusedError:
    return RefusedError(BAD, f"got {got}; expected {expected}")
