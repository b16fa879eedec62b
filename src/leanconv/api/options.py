"""Options that plans of one convolution and of networks share, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leanconv.errors import InputError, ModelError, SpecError, short
from leanconv.records import dataclass
from leanconv.settings import MOST_THREADS
from leanconv.types import HALVES, DType, find_dtype
from leanconv.units import parse_bytes

_ANY_ERROR = 1e30  # relative; larger ones are the same
# Weights that are streamed: a part that is used stays in L3 from the reading on; of a limit, parts
# that are used and read next take a share.
_PART_BYTES, _LEAST_PART_BYTES, _PARTS = 8 * 2**20, 64 * 2**10, 12
_LONGEST = 1000  # characters of an algorithm and its parameters


class PlanOptions(NamedTuple):
    """Options of `plan_conv2d` besides the convolution itself, checked; part of cache keys.

    Attributes:
        algorithm, memory_limit, max_error, threads, tune, reproducible: as `plan_conv2d` has them.
        precision: the half precision that is asked for on the CPU.
        packs: whether each run packs weights.
    """

    algorithm: str | None = None
    memory_limit: int | None = None
    max_error: float | None = None
    threads: int | None = None
    tune: bool = False
    reproducible: bool = False
    precision: DType | None = None
    packs: bool = False

    @staticmethod
    def checked(
        algorithm: Any = None,
        memory_limit: Any = None,
        max_error: Any = None,
        threads: Any = None,
        tune: Any = False,
        reproducible: Any = False,
    ) -> PlanOptions:
        """Make the options of a user's arguments.

        Raises:
            SpecError: one of them makes no sense.
        """
        return PlanOptions(
            checked_algorithm(algorithm),
            checked_limit(memory_limit),
            checked_error(max_error),
            checked_threads(threads),
            checked_flag("tune", tune),
            checked_flag("reproducible", reproducible),
        )

    @property
    def limits(self) -> tuple[str | None, int | None, float | None]:
        """The options that plans on a GPU have, too: algorithm, memory limit, largest error."""
        return self.algorithm, self.memory_limit, self.max_error

    @property
    def of_cpu(self) -> dict[str, int | None]:
        """Options that plans on a GPU do not have, by name."""
        return {"threads": self.threads, "tune": self.tune, "reproducible": self.reproducible}


def checked_dtype(dtype: Any) -> str | None:
    """The name of a dtype that may be given as NumPy has it, such as `np.float64`."""
    name: str | None = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
    return name


def checked_precision(precision: Any) -> DType | None:
    """The half precision that is asked for on the CPU; None for none.

    Raises:
        SpecError: the text names no half precision.
    """
    if precision is None:
        return None
    found = find_dtype(precision)
    if found not in HALVES:
        raise SpecError(
            f"precision is {short(precision)} for device 'cpu'; expected None, 'float16' or "
            "'bfloat16'"
        )
    return found


def checked_threads(threads: Any) -> int | None:
    """Threads that take part, None for the default.

    Raises:
        SpecError: it is no such number.
    """
    if threads is None:
        return None
    try:
        number = 0 if isinstance(threads, bool) else index(threads)
    except TypeError:
        number = 0
    if not 1 <= number <= MOST_THREADS:
        raise SpecError(
            f"threads is {short(threads)}; expected an integer from 1 to {MOST_THREADS}"
        )
    return number


def checked_flag(name: str, given: Any) -> bool:
    """An option that is True or False.

    Raises:
        SpecError: it is neither True nor False.
    """
    if isinstance(given, int | np.bool_) or given is None:
        return bool(given)
    got = type(given).__name__ if isinstance(given, np.ndarray) else short(given)
    raise SpecError(f"{name} is {got}; expected True or False")


def checked_shared(shared_weights: Any) -> bool | str:
    """Return whether weights are shared with other processes, or the folder that has them.

    Raises:
        SpecError: it is neither a path nor True or False.
    """
    if isinstance(shared_weights, bool | np.bool_) or shared_weights is None:
        return bool(shared_weights)
    given = os.fspath(shared_weights) if isinstance(shared_weights, str | os.PathLike) else ""
    if isinstance(given, str) and given and "\0" not in given:
        return given
    raise SpecError(
        f"shared_weights is {short(shared_weights)}; expected True, False or the path of a folder"
    )


def checked_limit(memory_limit: Any) -> int | None:
    """The bytes of a memory limit, None for none.

    Raises:
        SpecError: it is neither a number of bytes nor text such as "1 MiB".
    """
    return None if memory_limit is None else parse_bytes(memory_limit)


def checked_error(max_error: Any) -> float | None:
    """The largest relative error accepted, None for no limit.

    Raises:
        SpecError: it is no positive number.
    """
    if max_error is None:
        return None
    number = isinstance(max_error, float | int | np.floating) and not isinstance(max_error, bool)
    if not number or not max_error > 0:
        raise SpecError(
            f"max_error is {short(max_error)}; expected a positive number, such as 1e-5"
        )
    try:
        return min(float(max_error), _ANY_ERROR)
    except OverflowError:
        return _ANY_ERROR


def model_source(model: Any) -> Path | bytes:
    """Return the path or the bytes, as `read_model` takes them, of any model that `load` takes."""
    if hasattr(model, "SerializeToString"):
        try:
            return bytes(model.SerializeToString())
        except Exception as error:  # protobuf's own class, which is not imported here
            raise ModelError(
                f"the ModelProto cannot be serialised ({error}); expected one of under 2 GiB; "
                "save larger ones with onnx.save(model, path, save_as_external_data=True) and "
                "load the path"
            ) from error
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if isinstance(model, str | os.PathLike):
        return Path(model)
    mend = ""
    if hasattr(model, "state_dict"):  # of torch
        mend = "; export it: torch.onnx.export(network.eval(), (example,), 'model.onnx')"
    raise InputError(
        f"model is {type(model).__name__}; expected a path, the bytes of an ONNX file, or an "
        f"onnx.ModelProto{mend}"
    )


def checked_algorithm(algorithm: Any) -> str | None:
    """The name of an algorithm with its parameters, None for the best.

    Raises:
        SpecError: it is no text, or an endless one.
    """
    if algorithm is None or (isinstance(algorithm, str) and len(algorithm) <= _LONGEST):
        return algorithm
    raise SpecError(f"algorithm is {short(algorithm)}; expected text, such as 'winograd:m=4'")


def checked_algorithms(algorithms: Any) -> dict[str, str]:
    """Algorithms by the names of layers.

    Raises:
        SpecError: it is no dictionary of such texts.
    """
    if algorithms is None:
        return {}
    if not isinstance(algorithms, Mapping) or not all(
        isinstance(text, str) for pair in algorithms.items() for text in pair
    ):
        raise SpecError(
            f"algorithms is {short(algorithms)}; expected texts by the names of layers, such as "
            "{'conv1': 'winograd'}"
        )
    for algorithm in algorithms.values():
        checked_algorithm(algorithm)
    return dict(algorithms)


def _option(help: str, check: Callable[[Any], Any], default: Any = None) -> Any:  # noqa: A002
    """A field of `NetworkOptions`: its help on the command line, and a function that checks it."""
    made = {"default_factory": dict} if default == {} else {"default": default}
    return field(**made, metadata={"help": help, "check": check})


@dataclass(frozen=True)
class NetworkOptions:
    """Options of `load`, checked; the command line has them from here.

    Attributes:
        threads: that take part; None for those that the process may use.
        dtype: to compute in; None for the file's.
        precision: the half precision in which values and weights may be kept; None for the file's.
        max_error, memory_limit, stream_weights, reproducible, tune, algorithms: as `load` has them.
        shared_weights: whether packed weights are in a file that processes share, or its folder.
        least_parts: whether large weights that are streamed are in the smallest parts.
    """

    threads: int | None = _option(
        "threads (default: LEANCONV_THREADS, else all CPUs of this process)", checked_threads
    )
    dtype: str | None = _option(
        "compute in this type (default: the model's; of a problem, float32)", checked_dtype
    )
    precision: DType | None = _option(
        "allow half precision for weights, values and products where it is as fast",
        checked_precision,
    )
    max_error: float | None = _option(
        "largest relative error that a plan may expect, such as 1e-5 (default: aims at 1e-5 in "
        "float32)",
        checked_error,
    )
    memory_limit: int | None = _option(
        "the most that weights and activations may take, such as 12MiB, 1.5G or 8000000",
        checked_limit,
    )
    stream_weights: bool = _option(
        "read weights from a file while the network runs, for limits smaller than they are",
        partial(checked_flag, "stream_weights"),
        default=False,
    )
    reproducible: bool = _option(
        "the same bits for any batch and thread count",
        partial(checked_flag, "reproducible"),
        default=False,
    )
    tune: bool = _option(
        "measure the best candidates instead of estimating them, and remember the results",
        partial(checked_flag, "tune"),
        default=False,
    )
    algorithms: Mapping[str, str] = _option(
        "how a convolution is computed, such as conv1=winograd:m=4 (repeatable)",
        checked_algorithms,
        default={},
    )
    shared_weights: bool | str = _option(
        "keep packed weights in a file of the cache folder, which all processes share",
        checked_shared,
        default=False,
    )
    least_parts: bool = False

    @staticmethod
    def checked(**given: Any) -> NetworkOptions:
        """Make the options of a user's arguments; others have their defaults.

        Raises:
            SpecError: one of them makes no sense.
        """
        checks = {each.name: each.metadata["check"] for each in fields(NetworkOptions)[:-1]}
        return NetworkOptions(**{name: checks[name](value) for name, value in given.items()})

    @property
    def part_bytes(self) -> int | None:
        """Bytes of the parts that large weights are cut into; None where they stay whole."""
        if not self.stream_weights:
            return None
        limit = 0 if self.least_parts else self.memory_limit or _PART_BYTES * _PARTS
        return max(_LEAST_PART_BYTES, min(_PART_BYTES, limit // _PARTS))

    @property
    def in_least_parts(self) -> NetworkOptions | None:
        """Options with the smallest parts, for a limit that is too small, if they can help."""
        part = self.part_bytes
        if part is None or part <= _LEAST_PART_BYTES or self.memory_limit is None:
            return None
        return replace(self, least_parts=True)
