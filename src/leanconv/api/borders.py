"""Padding with other numbers than zeros: the image is copied into its border, then convolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from leanconv.api.conv_arguments import fitting_array, holds_codes, weight_dtype
from leanconv.api.layer_plan import LayerPlan
from leanconv.api.options import PlanOptions
from leanconv.errors import BudgetError, SpecError, memory_reported, short
from leanconv.records import dataclass
from leanconv.runtime.locks import Lock
from leanconv.spec.arguments import ConvArguments, spec_of
from leanconv.types import DType
from leanconv.units import format_bytes

ZEROS = "zeros"
# By PyTorch's name, NumPy's; "symmetric" is SciPy's "reflect", which PyTorch lacks.
_MODES = {
    "reflect": "reflect",
    "symmetric": "symmetric",
    "replicate": "edge",
    "circular": "wrap",
}
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Border:
    """A border around an image, along its spatial axes.

    Attributes:
        shape: of the image with its border.
        widths: the pixels before and after each axis of the array.
        mode: as `np.pad` has it.
        item_bytes: of an element.
    """

    shape: tuple[int, ...]
    widths: tuple[tuple[int, int], ...]
    mode: str
    item_bytes: int

    @property
    def inside(self) -> tuple[int, ...]:
        """The shape of the image alone."""
        return tuple(n - sum(pair) for n, pair in zip(self.shape, self.widths, strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of the image with its border."""
        return prod(self.shape) * self.item_bytes

    @memory_reported("padding an image")
    def empty(self, dtype: DType | np.dtype) -> np.ndarray:
        """Memory for an image with its border."""
        return np.empty(self.shape, dtype)

    def fill(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy an image, and its pixels that the border repeats, into memory from `empty`."""
        pairs = list(zip(self.widths, self.shape, strict=True))
        out[tuple(slice(before, extent - after) for (before, after), extent in pairs)] = x
        for axis, ((before, after), extent) in enumerate(pairs):
            if not (before or after):
                continue
            inside = np.arange(before, extent - after)
            source = np.pad(inside, (before, after), mode=self.mode)  # type: ignore[call-overload]
            along = (slice(None),) * axis
            for part in (slice(before), slice(extent - after, extent)):
                place = (*along, part)
                out[place] = out.take(source[part], axis)
        return out

    def within(self, options: PlanOptions, make: Callable[[PlanOptions], _Result]) -> _Result:
        """Call `make` with the options' memory limit less the bytes of the image with its border.

        Raises:
            BudgetError: nothing fits.
        """
        limit = options.memory_limit
        if limit is None:
            return make(options)
        try:
            # Weights take more than a byte: where nothing is left, this says how much is needed.
            return make(options._replace(memory_limit=max(1, limit - self.bytes)))
        except BudgetError as error:
            least = error.smallest_bytes + self.bytes
            if not error.smallest_bytes:
                raise
            raise BudgetError(
                f"no plan fits {format_bytes(limit)}: the image with its border takes "
                f"{format_bytes(self.bytes)} and the convolution at least "
                f"{format_bytes(error.smallest_bytes)}; give memory_limit={least} or more",
                least,
            ) from error


def bordered(
    x_shape: Sequence[int], w: np.ndarray, arguments: ConvArguments, mode: str, device: str
) -> tuple[Border, ConvArguments]:
    """The border of a convolution's images, and its other arguments, without padding.

    Args:
        x_shape: of the input.
        w: weights.
        arguments: of the convolution.
        mode: as `plan_conv2d` has it, not "zeros".
        device: of the plan.

    Raises:
        InputError: the weights are no array of a dtype that is taken.
        SpecError: there is no such mode, or the arguments describe no convolution.
    """
    if not isinstance(mode, str) or mode not in _MODES:
        raise SpecError(
            f"padding_mode is {short(mode)}; expected {ZEROS!r}, {', '.join(map(repr, _MODES))}"
        )
    if device != "cpu":
        raise SpecError(
            f"padding_mode is {mode!r} for device {device!r}; expected {ZEROS!r}: pad x yourself"
        )
    if not holds_codes(w):
        weight_dtype(w)
    spec = spec_of(x_shape, w.shape, arguments)
    pads = ((0, 0), (0, 0), *zip(spec.pad_begin, spec.pad_end, strict=True))
    widths = tuple(pads[axis] for axis in spec.format.axes(len(pads)))
    shape = tuple(n + sum(pair) for n, pair in zip(spec.input_shape, widths, strict=True))
    return Border(shape, widths, _MODES[mode], w.itemsize), arguments._replace(padding=0)


class BorderedPlan(LayerPlan):
    """A convolution of images with a border. Calls from several threads run in turn.

    Attributes:
        x_shape: of the image.
    """

    def __init__(self, plan: LayerPlan, border: Border) -> None:
        self.__dict__.update(plan.__dict__)
        self.x_shape, self._border = border.inside, border
        self.workspace_bytes = plan.workspace_bytes + border.bytes
        self._make_room()

    def _make_room(self) -> None:
        self._memory = self._border.empty(self.layer.x)
        self._filling = Lock("filling the border of the same plan")

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerPlan:
        copied = super().__deepcopy__(memo)
        assert isinstance(copied, BorderedPlan)
        copied._make_room()
        return copied

    @property
    def used_bytes(self) -> int:
        """Bytes that were allocated for this plan."""
        return super().used_bytes + self._memory.nbytes

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """Convolve.

        Args:
            x: the input, of the planned shape and dtype.
            out, residual: as a plan without a border takes them.

        Returns:
            y.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        x = fitting_array("x", x, self.x_shape, self.layer.x)
        with self._filling.held:
            return super().__call__(self._border.fill(x, self._memory), out, residual)
