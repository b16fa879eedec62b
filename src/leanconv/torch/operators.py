"""The operators `torch.ops.leanconv.conv2d` and so on, with their gradients of any order.

A convolution is linear in x and in w, and so are its gradients: the gradient of a gradient is made
of the same operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from leanconv.torch import calls
from leanconv.torch.geometry import KINDS, Kind

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

_library = torch.library.Library("leanconv", "DEF")
_TENSORS = "Tensor input, Tensor weight"


class Operator:
    """One kind of convolution and its gradient, registered with PyTorch.

    Attributes:
        forward: `torch.ops.leanconv.conv2d` and so on: (x, w, bias, *window) to y.
        backward: `torch.ops.leanconv.conv2d_backward`: (dy, x, w, *window, mask) to (dx, dw, db).
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        name, back = kind.name, f"{kind.name}_backward"
        _library.define(f"{name}({_TENSORS}, Tensor? bias=None, {kind.schema(True)}) -> Tensor")
        _library.define(
            f"{back}(Tensor grad_output, {_TENSORS}, {kind.schema(False)}, bool[3] output_mask)"
            " -> (Tensor, Tensor, Tensor)"
        )
        self.forward = getattr(torch.ops.leanconv, name).default
        self.backward = getattr(torch.ops.leanconv, back).default
        for call, kernels in ((name, self._forward_kernels()), (back, self._backward_kernels())):
            for key, kernel in kernels.items():
                if key == "fake":
                    torch.library.register_fake(f"leanconv::{call}", kernel, lib=_library)
                else:
                    _library.impl(call, kernel, key)

    def _forward_kernels(self) -> dict[str, Callable[..., Tensor]]:
        kind = self.kind

        def compute(x: Tensor, w: Tensor, bias: Tensor | None = None, *given: Any) -> Tensor:
            return calls.convolve(kind, x, w, bias, _hashable(given), False)

        def fake(x: Tensor, w: Tensor, bias: Tensor | None = None, *given: Any) -> Tensor:
            return calls.of_aten(kind, x, w, bias, given)

        def differentiate(x: Tensor, w: Tensor, bias: Tensor | None = None, *given: Any) -> Tensor:
            if torch._C._are_functorch_transforms_active():  # which know PyTorch's own operators
                return calls.of_aten(kind, x, w, bias, given)
            numbers, plain = _hashable(given), _are_plain(x, w, bias)
            if _is_differentiated(x, w, bias):
                return self.differentiated(x, w, bias, numbers, plain)
            return self.below_autograd(x, w, bias, numbers, False, plain)

        return {"CPU": compute, "fake": fake, "Autograd": differentiate}

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
        """The convolution; past PyTorch's dispatcher where nobody is to see the call there."""
        if torch.compiler.is_compiling() or not _is_unseen(x, w, bias) or not _are_known(given):
            found: Tensor = self.forward(x, w, bias, *given)
            return found
        if _is_differentiated(x, w, bias):
            return self.differentiated(x, w, bias, given, True)
        return calls.convolve(self.kind, x, w, bias, given, False)

    def differentiated(
        self, x: Tensor, w: Tensor, bias: Tensor | None, given: Any, plain: bool
    ) -> Tensor:
        """The convolution, whose gradients are wanted; `plain` as `_are_plain` says."""
        apply = _apply if plain else _Forward.apply
        found: Tensor = apply(self, x, w, bias, given, plain)
        return found

    def below_autograd(
        self, x: Tensor, w: Tensor, bias: Tensor | None, given: Any, trained: bool, plain: bool
    ) -> Tensor:
        """The convolution without gradients; `trained` where its weights will change."""
        if plain:
            return calls.convolve(self.kind, x, w, bias, given, trained)
        with torch._C._AutoDispatchBelowAutograd():
            found: Tensor = self.forward(x, w, bias, *given)
        return found

    def gradients(
        self, dy: Tensor, x: Tensor, w: Tensor, given: Sequence[Any], mask: Sequence[bool]
    ) -> Gradients:
        """dx, dw and db, those that are wanted."""
        if not _is_differentiated(x, w, dy) and _are_plain(x, w, dy):
            return calls.gradients(self.kind, dy, x, w, given, tuple(mask))
        window = self.kind.window(given)
        each = (getattr(window, name) for name in self.kind.parameters)
        found: Gradients = self.backward(dy, x, w, *each, [*mask])
        return found

    def _backward_kernels(self) -> dict[str, Callable[..., Gradients]]:
        kind = self.kind

        def compute(dy: Tensor, x: Tensor, w: Tensor, *given: Any) -> Gradients:
            return calls.gradients(kind, dy, x, w, _hashable(given[:-1]), tuple(given[-1]))

        def fake(dy: Tensor, x: Tensor, w: Tensor, *given: Any) -> Gradients:
            return calls.fake_backward(kind, dy, x, w, given[:-1], given[-1])

        def differentiate(dy: Tensor, x: Tensor, w: Tensor, *given: Any) -> Gradients:
            if torch._C._are_functorch_transforms_active():
                return calls.gradients_of_aten(kind, dy, x, w, given[:-1], given[-1])
            if _is_differentiated(x, w, dy):
                numbers = _hashable(given[:-1])
                found: Gradients = _Backward.apply(self, dy, x, w, numbers, given[-1])
                return found
            with torch._C._AutoDispatchBelowAutograd():
                result: Gradients = self.backward(dy, x, w, *given)
            return result

        return {"CPU": compute, "fake": fake, "Autograd": differentiate}


def _is_differentiated(x: Tensor, w: Tensor, other: Tensor | None) -> bool:
    """Return whether a gradient of the result may be wanted, backward or forward."""
    if torch.is_grad_enabled() and (
        x.requires_grad or w.requires_grad or (other is not None and other.requires_grad)
    ):
        return True
    return bool(forward_ad._current_level >= 0)


_keys_of = torch._C._dispatch_keys
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
_PLAIN = _keys_of(torch.empty(0)).raw_repr()


def _are_plain(x: Tensor, w: Tensor, other: Tensor | None) -> bool:
    """Return whether nothing but the CPU's kernel is to see tensors, which it may be given at once.

    Calls through PyTorch's dispatcher take 5 us more.
    """
    return (
        _keys_of(x).raw_repr() == _PLAIN
        and _keys_of(w).raw_repr() == _PLAIN
        and (other is None or _keys_of(other).raw_repr() == _PLAIN)
        and not _modes()
        and _transforms() is None
    )


_included = torch._C._dispatch_tls_local_include_set
_USUAL = _included().raw_repr()
_are_overridden = torch.overrides.has_torch_function_variadic
_profiles = torch.autograd._profiler_enabled


def _is_unseen(x: Tensor, w: Tensor, bias: Tensor | None) -> bool:
    """Return whether PyTorch's dispatcher would lead straight to the kernels of `Operator`.

    No class, mode or transform overrides functions of tensors, nothing traces or profiles them.
    """
    return (
        not _are_overridden(x, w, bias)
        and _included().raw_repr() == _USUAL
        and not _profiles()
        and _are_plain(x, w, bias)
    )


def _hashable(given: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of an operator, lists as tuples."""
    return tuple([n if type(n) is int else tuple(n) for n in given])


def _are_known(given: Sequence[Any]) -> bool:
    """Return whether arguments are whole numbers and tuples of them, which need no checks."""
    for each in given:
        if type(each) is tuple:
            for number in each:
                if type(number) is not int:
                    return False
        elif type(each) is not int:
            return False
    return True


class _Forward(torch.autograd.Function):
    """y of x, w and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: Operator,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        given: Any,
        plain: bool,
    ) -> Tensor:
        ctx.operator, ctx.given = operator, given
        ctx.save_for_backward(x, w)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(x, w)
        return operator.below_autograd(x, w, bias, given, ctx.needs_input_grad[2], plain)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        mask = ctx.needs_input_grad[1:4]
        return None, *ctx.operator.gradients(dy, x, w, ctx.given, mask), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _, dx, dw, db, *_ = tangents
        x, w = ctx.saved_tensors
        conv, given = ctx.operator.forward, ctx.given
        parts = []
        if dx is not None:
            parts.append(conv(dx, w, None, *given))
        if dw is not None:
            parts.append(conv(x, dw, None, *given))
        if db is not None:
            parts.append(_of_channels(db, ctx.operator.kind))
        return sum(parts[1:], parts[0])


# Past what `Function.apply` does in Python for transforms of `torch.func`.
_apply = super(torch.autograd.Function, _Forward).apply


class _Backward(torch.autograd.Function):
    """dx, dw and db of dy, x and w."""

    @staticmethod
    def forward(
        ctx: Any,
        operator: Operator,
        dy: Tensor,
        x: Tensor,
        w: Tensor,
        given: Any,
        mask: Sequence[bool],
    ) -> Gradients:
        ctx.operator, ctx.given = operator, given
        ctx.save_for_backward(dy, x, w)
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            result: Gradients = operator.backward(dy, x, w, *given, [*mask])
        return result

    @staticmethod
    def backward(ctx: Any, x_grad: Any, w_grad: Any, b_grad: Any) -> Any:
        dy, x, w = ctx.saved_tensors
        operator, given = ctx.operator, ctx.given
        for_dy, for_x, for_w = ctx.needs_input_grad[1:4]
        dy_grad = x_found = w_found = None
        if for_dy:
            parts = []
            if x_grad is not None:
                parts.append(operator.forward(x_grad, w, None, *given))
            if w_grad is not None:
                parts.append(operator.forward(x, w_grad, None, *given))
            if b_grad is not None:
                parts.append(_of_channels(b_grad, operator.kind).expand_as(dy))
            dy_grad = sum(parts[1:], parts[0]) if parts else None
        if for_x and w_grad is not None:
            x_found = operator.gradients(dy, x, w_grad, given, (True, False, False))[0]
        if for_w and x_grad is not None:
            w_found = operator.gradients(dy, x_grad, w, given, (False, True, False))[1]
        return None, dy_grad, x_found, w_found, None, None


def _of_channels(numbers: Tensor, kind: Kind) -> Tensor:
    """Numbers of channels, to be added to y."""
    return numbers.reshape(-1, *(1,) * kind.rank)


OPERATORS = {kind: Operator(kind) for kind in KINDS}
