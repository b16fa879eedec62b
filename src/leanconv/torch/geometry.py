"""Convolutions as PyTorch has them: the arguments, for all six kinds alike, and how tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from leanconv.api.conv_arguments import Constants, checked_spec, checked_transposed_spec
from leanconv.spec.arguments import ConvArguments
from leanconv.spec.format import ALIGNMENT
from leanconv.spec.transposed import TransposedArguments
from leanconv.types import FLOAT32, FLOAT64

TYPES = {torch.float32: FLOAT32, torch.float64: FLOAT64}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_LARGE = 64 * 1024
Ints = Sequence[int]


class Window(NamedTuple):
    """Where a convolution reads: one number for each spatial axis, and the groups."""

    stride: Ints
    padding: Ints
    dilation: Ints
    output_padding: Ints
    groups: int


@dataclass(frozen=True, eq=False)  # there is one object of each kind
class Kind:
    """One of the six convolutions.

    Attributes:
        rank: the number of spatial axes.
        transposed: whether it is the gradient of the data of another one.
    """

    rank: int
    transposed: bool

    @property
    def name(self) -> str:
        """The name of the function in `torch.nn.functional`, and of the operator."""
        return f"conv{'_transpose' if self.transposed else ''}{self.rank}d"

    @property
    def parameters(self) -> dict[str, int]:
        """The window's arguments, in PyTorch's order, each with its default."""
        if self.transposed:
            return {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
        return {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}

    def schema(self, defaults: bool) -> str:
        """The window's arguments in an operator's schema."""
        return ", ".join(
            f"{'int' if name == 'groups' else f'int[{self.rank}]'} {name}"
            + (f"={default}" if defaults else "")
            for name, default in self.parameters.items()
        )

    def window(self, given: Sequence[Any]) -> Window:
        """The arguments of an operator's call, from which the last may be missing."""
        usual = {
            name: default if name == "groups" else (default,) * self.rank
            for name, default in self.parameters.items()
        }
        named = usual | dict(zip(usual, given, strict=False))
        each = {n: v if n == "groups" else self._of_all_axes(v) for n, v in named.items()}
        return Window(**{"output_padding": (0,) * self.rank, **each})

    def _of_all_axes(self, numbers: Any) -> Any:
        """A number for each axis, where one stands for all of them."""
        given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
        return given * self.rank if len(given) == 1 else given

    def of_aten(self, window: Window) -> tuple[Any, ...]:
        """The same arguments as `aten::convolution` takes them."""
        stride, padding, dilation, output_padding, groups = window
        steps = [*stride], [*padding], [*dilation]
        return *steps, self.transposed, [*output_padding], groups


RANKS = (1, 2, 3)
PLAIN, TRANSPOSED = (
    {rank: Kind(rank, transposed) for rank in RANKS} for transposed in (False, True)
)
KINDS = (*PLAIN.values(), *TRANSPOSED.values())


def _are_taps_first(w: Tensor) -> bool:
    """Return whether weights lie with their channels last, and not row-major, too."""
    last = _LAST.get(w.dim())
    return last is not None and not w.is_contiguous() and w.is_contiguous(memory_format=last)


def memory_format(kind: Kind, x: Tensor, w: Tensor, bias: Tensor | None, window: Window) -> Any:
    """The format in which PyTorch computes a convolution of a batch, and gives its result.

    Raises:
        RuntimeError: the arguments describe no convolution.
    """
    backend = torch._C._select_conv_backend(x, w, bias, *kind.of_aten(window), None)
    return torch._C._conv_determine_backend_memory_format(x, w, backend)


class Geometry:
    """One convolution of tensors: shapes, types and how they lie.

    Args:
        kind, window: the convolution.
        x, w, bias: tensors of these shapes, types and strides.

    Attributes:
        format: of x and y, as PyTorch has them.
        last: whether their channels are last.
        taps_first: whether those of the weights are, and nothing else.
        x_shape, y_shape: of the tensors.
    """

    def __init__(
        self, kind: Kind, x: Tensor, w: Tensor, bias: Tensor | None, window: Window
    ) -> None:
        self.kind, self.window = kind, window
        self.format = memory_format(kind, x, w, bias, window)
        self.last = self.format == _LAST.get(x.dim())
        self.taps_first = _are_taps_first(w)
        self.dtype, self.name = x.dtype, TYPES[x.dtype]
        self.x_shape, self.w_shape = tuple(x.shape), tuple(w.shape)
        self.has_bias = bias is not None
        meta = [None if t is None else torch.empty_like(t, device="meta") for t in (x, w, bias)]
        y = torch.ops.aten.convolution.default(*meta, *kind.of_aten(window))
        self.y_shape = tuple(y.shape)

    def lies(self, tensor: Tensor) -> bool:
        """Return whether kernels read a tensor as it lies; `lying` copies others."""
        return bool(tensor.is_contiguous(memory_format=self.format))

    def lying(self, tensor: Tensor) -> Tensor:
        """A tensor as kernels read it; a copy where it lies otherwise."""
        return tensor.contiguous(memory_format=self.format)

    def weights(self, w: Tensor) -> Tensor:
        """Weights as a run that packs them reads them; a copy where they lie otherwise."""
        return w if self.taps_first else w.contiguous()

    def maker(self, shape: Sequence[int]) -> Callable[[], Tensor]:
        """A function that makes tensors like x or y, of any content."""
        like = torch.empty(shape, memory_format=self.format, device="meta")
        new = partial(torch.empty_strided, shape, like.stride(), dtype=self.dtype)
        kind, lies = np.dtype(self.name), self.in_layout(shape)
        if prod(shape) * kind.itemsize < _LARGE:
            return new

        # PyTorch has malloc align memory, for which glibc (before 2.38) finds room only in free
        # pieces that are larger than the tensor. A large one is had from malloc as it comes, in a
        # piece that another such tensor has left, and taken where that begins a cache line: in a
        # training step the heap has fewer gaps then.
        def made() -> Tensor:
            array = np.empty(lies, kind)
            if array.ctypes.data % ALIGNMENT:
                del array  # before other memory is looked for
                return new()
            return torch.from_numpy(np.moveaxis(array, -1, 1) if self.last else array)

        return made

    def in_layout(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A tensor's shape, its axes in the order in which they lie."""
        return (shape[0], *shape[2:], shape[1]) if self.last else tuple(shape)

    @property
    def arguments(self) -> ConvArguments | TransposedArguments:
        """The window as leanconv has it."""
        stride, padding, dilation, more, groups = self.window
        steps = tuple(stride), tuple(padding)
        if self.kind.transposed:
            return TransposedArguments(*steps, tuple(more), groups, tuple(dilation))
        layout = "NHWC" if self.last else "NCHW"
        return ConvArguments(*steps, tuple(dilation), groups, None, layout)

    def spec(self) -> Any:
        """The spec of the layer, with weights of any content."""
        ones = np.ones(1, self.name)
        outputs = self.y_shape[1]
        bias = np.zeros(outputs, self.name) if self.has_bias else None
        constants = Constants(np.broadcast_to(ones, self.w_shape), bias)
        arguments = self.arguments
        shape = self.in_layout(self.x_shape)
        if isinstance(arguments, TransposedArguments):
            return checked_transposed_spec(shape, constants, arguments), constants
        return checked_spec(shape, constants, arguments, False), constants
