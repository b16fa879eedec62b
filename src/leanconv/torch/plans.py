"""Plans of tensors in the CPU's memory, and the memory in which they work, one after the other.

Where weights are trained, each run packs them. In inference plans keep packed weights, with a copy
of the weights that tells whether they have changed (`leanconv.api.kept_plans`): no version counter
sees what is written through `.data`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from leanconv.api.compiled_conv import PackingConv
from leanconv.api.conv_arguments import Constants
from leanconv.api.conv_backward import gradient_plan, gradient_spec
from leanconv.api.gradient_plan import GradientPlan
from leanconv.api.kept_plans import Layer, second_size
from leanconv.api.layer_plan import LayerPlan
from leanconv.api.options import PlanOptions
from leanconv.errors import LeanConvError
from leanconv.records import replace
from leanconv.runtime.memory import SharedArena
from leanconv.spec.arguments import ConvArguments
from leanconv.torch.geometry import Geometry

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
NEEDS, RESULTS = ("x", "w", "bias"), ("dx", "dw", "db")
_Made = TypeVar("_Made", PackingConv, GradientPlan)
_MOST = 4096  # plans of other shapes and strides
_compiled: dict[Hashable, Any] = {}


class Workspace:
    """One arena for all plans of calls that follow one another; threads at once have one each.

    Attributes:
        arena: as large as the largest plan needs.
        plans: by what calls are given; None where leanconv refuses.
    """

    def __init__(self) -> None:
        self.arena, self.plans = SharedArena(), dict[Hashable, Any]()

    def keep(self, key: Hashable, plan: Any) -> None:
        """Keep a plan for calls that are given the same."""
        if len(self.plans) >= _MOST:
            self.plans.clear()
        self.plans[key] = plan

    def made(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """What is compiled for a key, in any workspace, to run in this one."""
        found = _compiled.get(key)
        if found is None:
            if len(_compiled) >= _MOST:
                _compiled.clear()
            found = _compiled[key] = make()
            found.arena.arena.give_back()
        linked: _Made = found.copied(self.arena)
        return linked


class TrainedConvolution:
    """A convolution whose weights each run packs.

    Args:
        geometry: of the tensors.
        options: of the plan.
        workspace: the memory in which it works.
        x, w, bias: tensors that lie as those of all calls do.
    """

    def __init__(
        self,
        geometry: Geometry,
        options: PlanOptions,
        workspace: Workspace,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
    ) -> None:
        spec, constants = geometry.spec()
        given = torch.empty_like(w)
        w_lies = w.is_contiguous() or given.stride() == w.stride()
        if w.is_contiguous() or not w_lies:
            given = torch.empty(geometry.w_shape, dtype=geometry.dtype)
        self._lie = geometry.lies(x) and w_lies and (bias is None or bias.is_contiguous())
        self._w_lies = w_lies
        packs, order = options._replace(packs=True), given.stride()
        constants = constants._replace(w=given.detach().numpy())
        like = second_size(spec, packs._replace(threads=None), order)  # whatever the threads
        self._run = workspace.made(
            (spec, packs, order), lambda: PackingConv(spec, constants, packs, like)
        ).run_at
        self._geometry, self._new = geometry, geometry.maker(geometry.y_shape)

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if not self._lie:
            x = self._geometry.lying(x)
            w = w if self._w_lies else w.contiguous()
            bias = None if bias is None else bias.contiguous()
        y = self._new()
        if bias is None:
            self._run(x.data_ptr(), w.data_ptr(), y.data_ptr())
        else:
            self._run(x.data_ptr(), w.data_ptr(), bias.data_ptr(), y.data_ptr())
        return y


class KeptConvolution:
    """A convolution whose packed weights are kept, with a copy that tells whether they changed.

    Args:
        geometry: of the tensors.
        options: of the plan.
        x, w, bias: tensors that lie as those of all calls do.
    """

    def __init__(
        self,
        geometry: Geometry,
        options: PlanOptions,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
    ) -> None:
        self._layer = Layer(geometry.spec()[0], options)
        self._geometry, self._new = geometry, geometry.maker(geometry.y_shape)
        self._w_lies = w.is_contiguous() and (bias is None or bias.is_contiguous())
        self._lie = geometry.lies(x) and self._w_lies
        size = x.element_size()
        self._w = ctypes.c_char * (size * prod(geometry.w_shape))
        self._bias = ctypes.c_char * (size * geometry.y_shape[1])
        # Of the last call: where its arrays lay, and buffers there, which may be gone.
        self._last: tuple[tuple[int, int], list[Any]] = (0, 0), []

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        address = w.data_ptr()
        if not self._lie:
            x, w = self._geometry.lying(x), w.contiguous()
            bias = None if bias is None else bias.contiguous()
        places = address if self._w_lies else w.data_ptr(), 0 if bias is None else bias.data_ptr()
        last, memory = self._last
        if places != last:
            memory = [self._w.from_address(places[0])]
            if bias is not None:
                memory.append(self._bias.from_address(places[1]))
            self._last = places, memory
        y = self._new()

        def run(plan: LayerPlan) -> Tensor:
            plan.run_at(x.data_ptr(), y.data_ptr())
            return y

        def constants() -> Constants:
            return Constants(array_of(w), None if bias is None else array_of(bias))

        return self._layer.run(run, address, memory, constants)


class TransposedByData:
    """A transposed convolution as the gradient of the data of another one."""

    def __init__(
        self, geometry: Geometry, options: PlanOptions, workspace: Workspace, x: Tensor
    ) -> None:
        stride, padding, dilation, _, groups = geometry.window
        layout = "NHWC" if geometry.last else "NCHW"
        window = (*stride,), (*padding,), (*dilation,), groups, None, layout
        shape = geometry.in_layout(geometry.y_shape)
        spec = gradient_spec(shape, geometry.w_shape, ConvArguments(*window), ("x",), geometry.name)
        spec = replace(spec, taps_first=geometry.taps_first)
        if spec.shapes["dy"] != geometry.in_layout(geometry.x_shape):
            raise LeanConvError("the output reaches beyond the gradient of a convolution's data")
        self._plan = workspace.made((spec, options), lambda: gradient_plan(spec, options))
        self._geometry, self._x_lies = geometry, geometry.lies(x)
        self._new = geometry.maker(geometry.y_shape)

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        geometry, y = self._geometry, self._new()
        w = geometry.weights(w)
        if not self._x_lies:
            x = geometry.lying(x)
        self._plan.run_at({"w": w.data_ptr(), "dy": x.data_ptr(), "dx": y.data_ptr()})
        if bias is not None:
            y += bias.view(-1, *(1,) * geometry.kind.rank)
        return y


class ConvolutionGradients:
    """The gradients of a convolution that are wanted.

    Args:
        geometry: of the tensors.
        mask: which gradients.
        options: of the plan.
        workspace: the memory in which it works.
        dy, x, w: tensors that lie as those of all calls do.
    """

    def __init__(
        self,
        geometry: Geometry,
        mask: Sequence[bool],
        options: PlanOptions,
        workspace: Workspace,
        dy: Tensor,
        x: Tensor,
        w: Tensor,
    ) -> None:
        needs = tuple(need for need, wanted in zip(NEEDS, mask, strict=True) if wanted)
        transposed = geometry.kind.transposed  # whose spec has planes
        shape = geometry.x_shape if transposed else geometry.in_layout(geometry.x_shape)
        spec = gradient_spec(shape, geometry.w_shape, geometry.arguments, needs, geometry.name)
        spec = replace(
            spec,
            taps_first="x" in needs and geometry.taps_first,
            transposed_last=transposed and geometry.last,
        )
        self._plan = workspace.made((spec, options), lambda: gradient_plan(spec, options))
        self._geometry, self._w_lies = geometry, w.is_contiguous()
        self._lie = geometry.lies(dy) and geometry.lies(x) and geometry.weights(w) is w
        new = {"dx": geometry.maker(geometry.x_shape)}
        for name in ("dw", "db"):
            new[name] = partial(torch.empty, spec.shapes[name], dtype=geometry.dtype)
        self._dx, self._dw, self._db = (new[n] if n in spec.results else None for n in RESULTS)

    def __call__(self, dy: Tensor, x: Tensor, w: Tensor) -> Gradients:
        given = w
        if not self._lie:
            geometry = self._geometry
            dy, x, w = geometry.lying(dy), geometry.lying(x), geometry.weights(w)
        addresses = {"dy": dy.data_ptr(), "x": x.data_ptr(), "w": w.data_ptr()}
        dx = dw = db = None
        if self._dx is not None:
            dx = self._dx()
            addresses["dx"] = dx.data_ptr()
        if self._dw is not None:
            dw = self._dw()
            addresses["dw"] = dw.data_ptr()
        if self._db is not None:
            db = self._db()
            addresses["db"] = db.data_ptr()
        self._plan.run_at(addresses)
        if dw is not None and not self._w_lies:
            dw = torch.empty_like(given).copy_(dw)
        return dx, dw, db


def array_of(tensor: Tensor) -> np.ndarray:
    """A row-major array of a tensor's elements; a view where they lie so."""
    array: np.ndarray = tensor.detach().contiguous().numpy()
    return array
