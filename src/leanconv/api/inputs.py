"""A network's inputs and outputs, as its file declares them, and arrays that fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.conv_arguments import array_mend, in_place, is_array
from leanconv.errors import InputError, memory_reported, shown
from leanconv.graph.ir import TensorType
from leanconv.graph.network_inputs import is_small
from leanconv.records import dataclass, replace
from leanconv.spec.arguments import fits, mended, resized
from leanconv.types import BOOL, FLOAT64, DType
from leanconv.units import shape_text, type_text

if TYPE_CHECKING:  # a compiled library's inputs need no reader of files
    from leanconv.graph.onnx_import import Model

Shape = tuple[int, ...]
Known = Mapping[str, np.ndarray]  # values of inputs by name
NOTHING_KNOWN: Known = MappingProxyType({})


@dataclass(frozen=True)
class InputSpec:
    """An input or output of a network.

    Attributes:
        name: as the file has it.
        shape: numbers; names of symbolic extents and None stand for extents that may vary. None
            if the file does not even fix the rank.
        dtype: of the arrays that it takes or gives.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: DType

    def __str__(self) -> str:
        return self.name if self.shape is None else f"{self.name}[{shape_text(self.shape)}]"

    @property
    def static_shape(self) -> Shape | None:
        """The shape where all of it is numbers, otherwise None."""
        if self.shape is None or not all(isinstance(extent, int) for extent in self.shape):
            return None
        return tuple(int(extent) for extent in self.shape if isinstance(extent, int))

    def takes(self, shape: Shape | None) -> bool:
        """Return whether an array of that shape fits."""
        return shape is not None and (self.shape is None or fits(shape, self.shape))


def input_specs(model: Model, dtype: DType) -> tuple[InputSpec, ...]:
    """Return the specs of a network's inputs.

    Args:
        model: the network as read from its file.
        dtype: that inputs are given in that the file has in the dtype in which it computes.
    """
    return tuple(
        InputSpec(i.name, i.shape, dtype if i.dtype == model.dtype else i.dtype)
        for i in model.inputs
    )


@dataclass(frozen=True)
class Ports:
    """What a network takes and gives, as far as it is known without a plan.

    Attributes:
        inputs, outputs: each with a `name`, a `shape` and a `dtype`.
        metadata: the file's own key-value pairs.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[InputSpec, ...]
    metadata: Mapping[str, str]

    @staticmethod
    def of(model: Model, input_dtype: DType, dtype: DType) -> Ports:
        """Return those of a model, of whose floats inputs and outputs are given in these types."""
        inputs, outputs = input_specs(model, input_dtype), output_specs(model, dtype)
        return Ports(inputs, outputs, model.metadata)


def bound_by(
    inputs: Iterable[InputSpec], arrays: Mapping[str, np.ndarray]
) -> dict[str, Shape | np.ndarray]:
    """Return `Network.bind`'s arguments for arrays: shapes, and values of inputs that may decide.

    Args:
        inputs: of the network.
        arrays: one for each, by name.
    """
    small = {spec.name for spec in inputs if is_small(spec.shape, spec.dtype)}
    return {name: a if name in small else a.shape for name, a in arrays.items()}


def given_values(
    inputs: Iterable[InputSpec], given: Iterable[tuple[str, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """The arrays that `--value` gives on the command line, by the inputs' names.

    Args:
        inputs: of the network.
        given: names of small inputs, and the integers that each gets.

    Raises:
        InputError: there is no such input, or it takes no such value.
    """
    declared = {value.name: value for value in inputs}
    chosen = {}
    for name, numbers in given:
        spec = declared.get(name)
        if spec is None or spec.dtype.is_float or len(spec.shape or (None,)) > 1:
            small = [n for n, s in declared.items() if s.shape is not None and len(s.shape) < 2]
            raise InputError(
                f"--value names the input {name!r}; expected one of integers without axes or with "
                f"one{': ' + ', '.join(small) if small else ', which the network has not'}"
            )
        shape = () if spec.shape == () else (len(numbers),)
        if len(numbers) != max(1, prod(shape)) or not spec.takes(shape):
            raise InputError(
                f"--value gives {len(numbers)} numbers for input {name}; expected "
                f"{shape_text(spec.shape)}"
            )
        chosen[name] = np.array(numbers, spec.dtype.numpy).reshape(shape)
    return chosen


def output_specs(model: Model, dtype: DType) -> tuple[InputSpec, ...]:
    """Return the specs of a network's outputs.

    Args:
        model: the network as read from its file.
        dtype: that outputs are given in that the file has in the dtype in which it computes.
    """
    kinds = [dtype if each in (None, model.dtype) else each for each in model.output_dtypes]
    declared = zip(model.outputs, model.output_shapes, kinds, strict=True)
    return tuple(InputSpec(name, shape, kind) for name, shape, kind in declared)


def planned_specs(
    specs: Iterable[InputSpec], computed: Mapping[str, TensorType | None]
) -> tuple[InputSpec, ...]:
    """Return the specs of outputs in a plan.

    Args:
        specs: as the file declares them.
        computed: types in the plan by name; what the file says counts for outputs without, which
            are computed behind its steps.
    """

    def planned(spec: InputSpec) -> InputSpec:
        found = computed.get(spec.name)
        if found is None:
            return spec
        kind = found.dtype if spec.dtype.held == spec.dtype else spec.dtype
        return InputSpec(spec.name, found.shape, kind)

    return tuple(map(planned, specs))


@memory_reported("copying an input")
def validated_input(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    """The array as kernels can read it: of the declared dtype, contiguous, aligned."""
    if isinstance(array, _NUMBERS) and spec.shape == () and not spec.dtype.is_float:
        return _one_number(array, spec)
    if not is_array(array):
        raise InputError(
            f"input {spec.name!r} is {type(array).__name__}; expected a NumPy array"
            f"{array_mend(array, spec.dtype)}"
        )
    kind = spec.dtype
    if kind.held != kind:
        array, spec = _as_codes(array, spec), replace(spec, dtype=kind.held)
    exact = array.dtype == spec.dtype
    widened = array.dtype == np.float32 and spec.dtype == FLOAT64
    if not (exact or widened) or not (spec.shape == array.shape or spec.takes(array.shape)):
        raise InputError(
            f"input {spec.name!r} is {type_text(array.dtype, array.shape)}; expected "
            f"{type_text(spec.dtype, spec.shape)}{input_mend(array, spec)}"
        )
    if widened:
        array = array.astype(np.float64)
    return in_place(array)


def refuse_unsound(arrays: Known, of: str) -> None:
    """Refuse samples in which a number is NaN or infinite.

    Minus infinity is taken: masks of attention have it.

    Args:
        arrays: by the inputs' names.
        of: the name of the sample, for the message.

    Raises:
        InputError: a number is.
    """
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not (array < np.inf).all():
            raise InputError(
                f"{of}: input {shown(name)!r} has NaN or infinity; expected finite numbers"
            )


def _as_codes(array: np.ndarray, spec: InputSpec) -> np.ndarray:
    """The codes of an array for an input of a type of at most 8 bits."""
    from leanconv.graph.narrow_codes import taken  # late: it imports all operations

    codes = taken(array, spec.dtype)
    if codes is None:
        raise InputError(
            f"input {spec.name!r} is {type_text(array.dtype, array.shape)}; expected "
            f"{type_text(spec.dtype, spec.shape)}: an array of the package ml_dtypes, or one of "
            f"{spec.dtype.held} with its codes"
        )
    return codes


_NUMBERS = (int, np.integer, np.bool_)  # of which an input without axes may be given


def _one_number(number: Any, spec: InputSpec) -> np.ndarray:
    """An array of a number that its dtype holds."""
    kind = np.dtype(spec.dtype)
    if isinstance(number, bool | np.bool_) != (spec.dtype == BOOL):
        raise InputError(f"input {spec.name!r} is {number}; expected a number of {spec.dtype}")
    if spec.dtype != BOOL and not np.iinfo(kind).min <= number <= np.iinfo(kind).max:
        raise InputError(f"input {spec.name!r} is {number}, which {spec.dtype} does not hold")
    return np.array(number, kind)


def input_mend(array: np.ndarray, spec: InputSpec) -> str:
    """Return the end of a message: how to make the array fit; "" where that is unknown."""
    text, then = mended("x", array.shape, spec.shape), ""
    if not text and not spec.takes(array.shape):
        text = resized("x", array.shape, spec.shape)
        then = ", of the other height and width: resize the image" if text else ""
    if array.dtype != spec.dtype:
        text = f"{text or 'x'}.astype({spec.dtype!r})"
        if array.dtype.kind in "iu" and spec.dtype.is_float:
            then += ", scaled as in training: often divided by 255"
    return f": give {text}{then}" if text else ""
