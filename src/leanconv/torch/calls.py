"""Convolutions of tensors and their gradients: plans are found by the shapes and strides of a call.

Whether a call is a convolution at all, and in which memory format its result lies, PyTorch says
when shapes come for the first time: wrong ones have its own errors. What leanconv refuses PyTorch
computes, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from leanconv.api.options import PlanOptions
from leanconv.errors import LeanConvError
from leanconv.torch.geometry import TYPES, Geometry, Kind, memory_format
from leanconv.torch.plans import (
    ConvolutionGradients,
    Gradients,
    KeptConvolution,
    TrainedConvolution,
    TransposedByData,
    Workspace,
)

log = logging.getLogger(__name__)

_NEW = object()  # in the place of a plan that is not kept yet; None is one that is refused
_free: list[Workspace] = []


def taken() -> Workspace:
    """A workspace that nobody else uses, until it is given back."""
    try:
        return _free.pop()
    except IndexError:
        return Workspace()


def give_back(workspace: Workspace) -> None:
    """Let others use a workspace."""
    _free.append(workspace)


def convolve(
    kind: Kind, x: Tensor, w: Tensor, bias: Tensor | None, given: Sequence[Any], trained: bool
) -> Tensor:
    """The convolution of tensors of the CPU, forward.

    Args:
        kind: of the convolution.
        x, w, bias: its tensors; a batch, or one image.
        given: the other arguments of the operator: whole numbers, and tuples of such.
        trained: whether the weights are expected to change from call to call.
    """
    if x.dim() == kind.rank + 1:
        return convolve(kind, x.unsqueeze(0), w, bias, given, trained).squeeze(0)
    kinds = x.dtype, w.dtype, None if bias is None else (bias.shape, bias.stride(), bias.dtype)
    lie = x.shape, x.stride(), w.shape, w.stride()
    key = kind, trained, given, lie, kinds, torch.get_num_threads()
    workspace = taken()
    try:
        plan = workspace.plans.get(key, _NEW)
        if plan is _NEW:
            plan = _kept(workspace, key, _forward_plan, (x, w, bias), kind, given, trained)
        if plan is not None:
            found: Tensor = plan(x, w, bias)
            return found
    finally:
        give_back(workspace)
    return of_aten(kind, x, w, bias, given)


def _forward_plan(
    workspace: Workspace,
    threads: int,
    tensors: Sequence[Any],
    kind: Kind,
    given: Sequence[Any],
    trained: bool,
) -> Callable[..., Tensor]:
    x, w, bias = tensors
    geometry = Geometry(kind, x, w, bias, kind.window(given))
    options = PlanOptions(threads=threads)
    if kind.transposed and (trained or geometry.last):
        try:
            return TransposedByData(geometry, options, workspace, x)
        except LeanConvError:
            if geometry.last:
                raise
    if trained and not kind.transposed:
        return TrainedConvolution(geometry, options, workspace, x, w, bias)
    return KeptConvolution(geometry, options, x, w, bias)


def of_aten(kind: Kind, x: Tensor, w: Tensor, bias: Tensor | None, given: Sequence[Any]) -> Tensor:
    """The convolution as PyTorch computes it; of tensors without numbers, what it is like."""
    if x.dim() == kind.rank + 1:
        return of_aten(kind, x.unsqueeze(0), w, bias, given).squeeze(0)
    window = kind.of_aten(kind.window(given))
    found: Tensor = torch.ops.aten.convolution.default(x, w, bias, *window)
    return found


def gradients(
    kind: Kind, dy: Tensor, x: Tensor, w: Tensor, given: Sequence[Any], mask: Sequence[bool]
) -> Gradients:
    """The gradients of a convolution of tensors of the CPU.

    Args:
        kind: of the convolution.
        dy: the gradient of its result.
        x, w: its tensors; a batch, or one image.
        given: the other arguments of the operator: whole numbers, and tuples of such.
        mask: which are wanted: of x, of w, of the bias.
    """
    if x.dim() == kind.rank + 1:
        dx, dw, db = gradients(kind, dy.unsqueeze(0), x.unsqueeze(0), w, given, mask)
        return None if dx is None else dx.squeeze(0), dw, db
    kinds = dy.dtype, x.dtype, w.dtype
    lie = dy.shape, dy.stride(), x.shape, x.stride(), w.shape, w.stride()
    key = kind, given, lie, kinds, mask, torch.get_num_threads()
    workspace = taken()
    try:
        plan = workspace.plans.get(key, _NEW) if True in mask else None
        if plan is _NEW:
            plan = _kept(workspace, key, _backward_plan, (x, dy, w), kind, given, mask)
        if plan is not None:
            found: Gradients = plan(dy, x, w)
            return found
    finally:
        give_back(workspace)
    return gradients_of_aten(kind, dy, x, w, given, mask)


def _backward_plan(
    workspace: Workspace,
    threads: int,
    tensors: Sequence[Tensor],
    kind: Kind,
    given: Sequence[Any],
    mask: Sequence[bool],
) -> ConvolutionGradients:
    x, dy, w = tensors
    geometry = Geometry(kind, x, w, None, kind.window(given))
    if tuple(dy.shape) != geometry.y_shape:
        raise RuntimeError(
            f"grad_output has the shape {tuple(dy.shape)}; expected {geometry.y_shape}"
        )
    return ConvolutionGradients(geometry, mask, PlanOptions(threads=threads), workspace, dy, x, w)


def gradients_of_aten(
    kind: Kind, dy: Tensor, x: Tensor, w: Tensor, given: Sequence[Any], mask: Sequence[bool]
) -> Gradients:
    """The gradients as PyTorch computes them; that of the weights lies as they do."""
    if x.dim() == kind.rank + 1:
        dx, dw, db = gradients_of_aten(kind, dy.unsqueeze(0), x.unsqueeze(0), w, given, mask)
        return None if dx is None else dx.squeeze(0), dw, db
    channels = w.shape[1] * kind.window(given).groups if kind.transposed else w.shape[0]
    window = kind.of_aten(kind.window(given))
    back = torch.ops.aten.convolution_backward.default
    dx, dw, db = back(dy, x, w, [channels], *window, [*mask])
    return dx, None if dw is None else torch.empty_like(w).copy_(dw), db


def _kept(
    workspace: Workspace,
    key: Hashable,
    make: Callable[..., Any],
    tensors: Sequence[Tensor | None],
    *given: Any,
) -> Any:
    """A new plan, which is kept for calls of the key; None where PyTorch is to compute."""
    made, there = None, [each for each in tensors if each is not None]
    first = there[0]
    if first.dtype in TYPES and all(t.dtype == first.dtype and t.numel() for t in there):
        try:
            made = make(workspace, torch.get_num_threads(), tensors, *given)
        except LeanConvError as error:
            log.warning("PyTorch computes a convolution of %s: %s", tuple(first.shape), error)
    workspace.keep(key, made)
    return made


def fake_backward(
    kind: Kind, dy: Tensor, x: Tensor, w: Tensor, given: Sequence[Any], mask: Sequence[bool]
) -> Gradients:
    """Tensors without numbers, of the shapes and strides of the gradients."""
    if x.dim() == kind.rank + 1:
        dx, dw, db = fake_backward(kind, dy.unsqueeze(0), x.unsqueeze(0), w, given, mask)
        return None if dx is None else dx.squeeze(0), dw, db
    form = memory_format(kind, x, w, None, kind.window(given))
    dx = torch.empty_like(x, memory_format=form) if mask[0] else None
    dw = torch.empty_like(w) if mask[1] else None
    return dx, dw, w.new_empty(dy.shape[1]) if mask[2] else None
