"""Convolutions with the arguments of `torch.nn.functional`, computed by leanconv where it can.

    y = leanconv.torch.conv2d(x, weight, bias, stride=2, padding=1)

Tensors of float32 and float64 in the CPU's memory are leanconv's; all others, and what runs under
autocast or is transformed by `torch.func`, PyTorch's own function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from leanconv.torch.geometry import PLAIN, RANKS, TRANSPOSED, TYPES, Kind
from leanconv.torch.operators import OPERATORS

Steps: TypeAlias = "int | Sequence[int]"
Convolution: TypeAlias = Callable[..., Tensor]


def _are_ours(kind: Kind, x: Tensor, w: Tensor, bias: Tensor | None) -> bool:
    """Return whether leanconv computes with tensors, and no transform of `torch.func` does."""
    for each in (x, w) if bias is None else (x, w, bias):
        if not isinstance(each, Tensor) or each.dtype not in TYPES:
            return False
        if not each.is_cpu or each.layout is not torch.strided:
            return False
    if w.dim() != kind.rank + 2 or x.dim() not in (kind.rank + 1, kind.rank + 2):
        return False
    return not (torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active())


def _convolution(rank: int) -> Convolution:
    kind = PLAIN[rank]
    operator, torch_own = OPERATORS[kind], getattr(functional, kind.name)

    def convolve(
        input: Tensor,  # noqa: A002  (the name that torch.nn.functional gives it)
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Steps = 1,
        padding: Steps | str = 0,
        dilation: Steps = 1,
        groups: int = 1,
    ) -> Tensor:
        compute: Convolution = torch_own
        if groups > 0 and _are_ours(kind, input, weight, bias):
            if isinstance(padding, str):
                input, padding = _padded(kind, input, weight, stride, padding, dilation)  # noqa: A001
            if not isinstance(padding, str):
                compute = operator
        found: Tensor = compute(input, weight, bias, stride, padding, dilation, groups)
        return found

    return _named(convolve, kind)


def _transposed(rank: int) -> Convolution:
    kind = TRANSPOSED[rank]
    operator, torch_own = OPERATORS[kind], getattr(functional, kind.name)

    def convolve(
        input: Tensor,  # noqa: A002  (the name that torch.nn.functional gives it)
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Steps = 1,
        padding: Steps = 0,
        output_padding: Steps = 0,
        groups: int = 1,
        dilation: Steps = 1,
    ) -> Tensor:
        compute = operator if _are_ours(kind, input, weight, bias) else torch_own
        found: Tensor = compute(
            input, weight, bias, stride, padding, output_padding, groups, dilation
        )
        return found

    return _named(convolve, kind)


def _named(function: Convolution, kind: Kind) -> Convolution:
    function.__name__ = function.__qualname__ = kind.name
    function.__doc__ = f"""Convolve as `torch.nn.functional.{kind.name}`, on the CPU by leanconv.

    Gradients of any order are leanconv's, too. The arguments are those of PyTorch's function.
    """
    return function


def _padded(
    kind: Kind, x: Tensor, w: Tensor, stride: Steps, padding: str, dilation: Steps
) -> tuple[Tensor, Sequence[int] | str]:
    """The tensor and the numbers that "same" or "valid" stands for; as they are if wrong."""
    if padding == "valid":
        return x, (0,) * kind.rank
    if padding != "same" or any(step != 1 for step in _each(stride, kind.rank)):
        return x, padding
    steps = zip(_each(dilation, kind.rank), w.shape[2:], strict=True)
    total = [dilation * (extent - 1) for dilation, extent in steps]
    if any(n % 2 for n in total):  # one more at the end, as PyTorch has it
        x = functional.pad(x, [end for n in reversed(total) for end in (0, n % 2)])
    return x, [n // 2 for n in total]


def _each(steps: Steps, rank: int) -> tuple[int, ...]:
    """A number for each axis."""
    given = (steps,) if isinstance(steps, int) else tuple(steps)
    return given * rank if len(given) == 1 else given


conv1d, conv2d, conv3d = map(_convolution, RANKS)
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed, RANKS)
