"""Tensors of all kinds: formats, types, devices, modes, and what is no convolution."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: leanconv[torch]")

from torch.nn import functional as F  # noqa: E402, N812
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import leanconv as lc  # noqa: E402
import leanconv.torch as ours  # noqa: E402
from leanconv.codegen import compiler  # noqa: E402

pytestmark = pytest.mark.once
NAMES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Check values, and that they lie as PyTorch's do."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.numel():
        assert found.stride() == expected.stride()
        largest = max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= tolerance * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str, dtype: Any) -> None:
    (info,) = (each for each in op_db if each.name == f"nn.functional.{name}")
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        tensors = [sample.input, *(t for t in sample.args if isinstance(t, torch.Tensor))]
        found = getattr(ours, name)(sample.input, *sample.args, **sample.kwargs)
        expected = getattr(F, name)(sample.input, *sample.args, **sample.kwargs)
        close(found.detach(), expected.detach(), tolerance)
        dy = torch.randn_like(expected)
        given = torch.autograd.grad(found, tensors, dy)
        wanted = torch.autograd.grad(expected, tensors, dy)
        for each, other in zip(given, wanted, strict=True):
            assert torch.allclose(each, other, rtol=1e-3, atol=tolerance * 100)


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_those_of_torch(name: str) -> None:
    (info,) = (each for each in op_db if each.name == f"nn.functional.{name}")
    if info.error_inputs_func is None:
        pytest.skip("torch has no wrong inputs for it")
    for wrong in info.error_inputs("cpu"):
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type, match=wrong.error_regex):
            getattr(ours, name)(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "conv3d", "conv_transpose3d"])
def test_formats_are_those_of_torch(name: str, dtype: Any) -> None:
    rank, transposed = int(name[-2]), "transpose" in name
    last = FORMATS["channels_last" if rank == 2 else "channels_last_3d"]
    torch.manual_seed(0)
    x = torch.randn(2, 4, *(5, 6, 7)[-rank:], dtype=dtype)
    w = torch.randn(*((4, 3) if transposed else (6, 2)), *(2, 3, 2)[-rank:], dtype=dtype)
    window = ((2, 1, 2)[-rank:], 1, 0, 2) if transposed else ((2, 1, 2)[-rank:], 1, 1, 2)
    for of_x, of_w in ((last, last), (last, None), (None, last), (None, None)):
        laid = [
            t.to(memory_format=form or torch.contiguous_format).requires_grad_()
            for t, form in ((x, of_x), (w, of_w))
        ]
        laid[0] = laid[0][:, :, ::1]
        found, expected = (getattr(m, name)(*laid, None, *window) for m in (ours, F))
        close(found.detach(), expected.detach(), 1e-5)
        dy = torch.randn(expected.shape, dtype=dtype)  # lies otherwise than y
        gradients = (torch.autograd.grad(y, laid, dy) for y in (found, expected))
        for each, other in zip(*gradients, strict=True):
            assert torch.allclose(each, other, atol=1e-4)
        with torch.no_grad():
            close(getattr(ours, name)(*laid, None, *window), expected.detach(), 1e-5)


def test_tensors_that_lie_otherwise() -> None:
    x, w = torch.randn(2, 9, 4, 8).transpose(1, 2), torch.randn(3, 3, 4, 6).permute(3, 2, 1, 0)
    for each in (x, x[:, :, ::2, 1:], x.expand(2, 4, 9, 8), torch._neg_view(x)):
        close(ours.conv2d(each, w), F.conv2d(each, w), 1e-5)
    weight = w.clone().requires_grad_()
    ours.conv2d(x, weight).sum().backward()  # whose gradient is one number for all
    other = w.clone().requires_grad_()
    F.conv2d(x, other).sum().backward()
    assert torch.allclose(weight.grad, other.grad, atol=1e-4)
    assert weight.grad.stride() == other.grad.stride()


@pytest.mark.parametrize("wanted", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])
def test_whatever_requires_gradients(wanted: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 4, 6, 5), torch.randn(3, 4, 3, 3), torch.randn(3)
    results = []
    for convolve in (ours.conv2d, F.conv2d):
        given = [v.clone().requires_grad_(bool(w)) for v, w in zip(values, wanted, strict=True)]
        y = convolve(*given, padding=1)
        assert y.requires_grad == any(wanted)
        if any(wanted):
            y.square().sum().backward()
        results.append([y.detach(), *(t.grad for t in given)])
    for found, expected in zip(*results, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or torch.allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_empty_batches() -> None:
    x, w = torch.randn(0, 4, 6, 5, requires_grad=True), torch.randn(3, 4, 3, 3, requires_grad=True)
    y = ours.conv2d(x, w, torch.randn(3))
    assert y.shape == (0, 3, 4, 3)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert not w.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.complex64])
def test_other_types_are_left_to_torch(dtype: Any) -> None:
    x, w = (8 * torch.randn(1, 2, 5, 5)).to(dtype), (8 * torch.randn(3, 2, 3, 3)).to(dtype)
    assert torch.equal(ours.conv2d(x, w), F.conv2d(x, w))


def test_other_devices_are_left_to_torch() -> None:
    x, w = torch.randn(1, 2, 5, 5, device="meta"), torch.randn(3, 2, 3, 3, device="meta")
    assert ours.conv2d(x, w).device.type == "meta"
    assert torch.ops.leanconv.conv2d(x, w).shape == (1, 3, 3, 3)
    x, w = torch.randn(1, 2, 5, 5).to_mkldnn(), torch.randn(3, 2, 3, 3)
    assert torch.equal(ours.conv2d(x, w).to_dense(), F.conv2d(x, w).to_dense())
    with pytest.raises(NotImplementedError, match=r"leanconv::conv2d.*MkldnnCPU"):
        torch.ops.leanconv.conv2d(x, w)


def test_autocast_is_left_to_torch() -> None:
    x = torch.randn(1, 2, 5, 5)
    module = ours.Conv2d(2, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
        assert torch.equal(y, F.conv2d(x, module.weight, module.bias))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert module.weight.grad.dtype == torch.float32
    assert module(x).dtype == torch.float32


def test_inference_mode() -> None:
    module, x = ours.Conv2d(4, 6, 3), torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        expected = module(x)
    with torch.inference_mode():
        found = module(x)
    assert found.is_inference()
    assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        module(found[:, :4])


def test_transforms_of_torch_func() -> None:
    x, w = torch.randn(3, 1, 2, 5, 5), torch.randn(4, 2, 3, 3)
    operator = torch.ops.leanconv.conv2d

    def loss(convolve: Any, weight: Any, image: Any) -> Any:
        return convolve(image, weight).square().sum()

    for convolve in (ours.conv2d, operator):
        found, expected = (
            torch.func.grad(loss, argnums=1)(c, w, x[0]) for c in (convolve, F.conv2d)
        )
        assert torch.allclose(found, expected, rtol=1e-4)
    each = torch.func.vmap(torch.func.grad(loss, argnums=1), (None, None, 0))
    assert torch.allclose(each(ours.conv2d, w, x), each(F.conv2d, w, x), rtol=1e-4)
    batched = torch.vmap(ours.conv2d, (0, None))(x, w)
    assert torch.allclose(batched, torch.vmap(F.conv2d, (0, None))(x, w), atol=1e-5)


def test_weights_that_changed_before_backward_are_an_error() -> None:
    x, w = torch.randn(1, 2, 5, 5, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)
    y = ours.conv2d(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_bits_do_not_depend_on_threads() -> None:
    """Nor on how many were there when the layer came with another size."""
    x, w = torch.randn(4, 16, 14, 14), torch.randn(24, 16, 3, 3, requires_grad=True)
    results, before = [], torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        ours.conv2d(torch.randn(4, 16, 28, 28), w, padding=1).sum().backward()
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            w.grad = None
            y = ours.conv2d(x, w, padding=1)
            y.square().sum().backward()
            results.append((y.detach(), w.grad))
    finally:
        torch.set_num_threads(before)
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


def test_threads_at_once() -> None:
    w = torch.randn(8, 4, 3, 3, requires_grad=True)
    inputs = [torch.randn(1, 4, 6 + n, 8) for n in range(4)]
    expected = [torch.autograd.grad(F.conv2d(x, w).square().sum(), w)[0] for x in inputs]
    failures: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            x = inputs[number]
            (found,) = torch.autograd.grad(ours.conv2d(x, w).square().sum(), w)
            with torch.no_grad():
                same = torch.allclose(ours.conv2d(x, w), F.conv2d(x, w), atol=1e-4)
            if not same or not torch.allclose(found, expected[number], rtol=1e-3, atol=1e-2):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []


def test_forked_children_compute() -> None:
    module, x = ours.Conv2d(4, 6, 3), torch.randn(1, 4, 8, 8)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as DataLoader's workers do: OpenMP's threads do not survive a fork
    try:
        expected = module(x)
        child = os.fork()
        if child == 0:
            found = module(x)
            found.sum().backward()
            os._exit(0 if torch.equal(found, expected) else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(before)


def test_arrays_through_dlpack() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    import numpy as np

    y = lc.conv2d(np.from_dlpack(x), np.from_dlpack(w))
    assert torch.allclose(torch.from_dlpack(y), F.conv2d(x, w), atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_weights_with_their_channels_last(name: str, layout: Any, groups: int) -> None:
    """As many rows as channels: a tensor that is read in the wrong format has the right shape."""
    torch.manual_seed(0)
    shape = (8, 8 // groups, 3, 3)

    def whole(*shape: int, form: Any = torch.contiguous_format) -> Any:
        found = torch.randint(-4, 5, shape).double().contiguous(memory_format=form)
        return found.requires_grad_()

    x, bias = whole(2, 8, 8, 8, form=layout), whole(8)
    for form in (torch.channels_last, torch.contiguous_format):
        tensors = x, whole(*shape, form=form), bias
        more = (1, 1, 0, groups) if "transpose" in name else (1, 1, 1, groups)
        each = [getattr(m, name)(*tensors, *more) for m in (ours, torch.nn.functional)]
        dy = torch.randint(-4, 5, each[1].shape).double()
        found, expected = (torch.autograd.grad(y, tensors, dy) for y in each)
        assert found[1].stride() == tensors[1].stride()
        for one, other in zip((each[0], *found), (each[1], *expected), strict=True):
            close(one.detach().contiguous(), other.detach().contiguous(), 1e-13)


def test_weights_that_lie_otherwise() -> None:
    torch.manual_seed(0)
    x, wide = torch.randn(2, 6, 9, 9), torch.randn(8, 6, 3, 6)
    orders = [torch.randn(3, 8, 3, 6).permute(1, 3, 2, 0), wide[..., ::2]]
    for w in (*orders, torch.randn(8, 6, 1, 1).expand(8, 6, 3, 3)):
        given, dy = w.detach().requires_grad_(), torch.randn(2, 8, 7, 7)
        bias = torch.randn(16)[::2].requires_grad_()
        each = [m.conv2d(x, given, bias) for m in (ours, torch.nn.functional)]
        found, expected = (torch.autograd.grad(y, (given, bias), dy) for y in each)
        for one, other in zip((each[0], *found), (each[1], *expected), strict=True):
            assert torch.allclose(one, other, atol=1e-4)
        with torch.no_grad():
            assert torch.allclose(ours.conv2d(x, given, bias), each[1], atol=1e-5)


@pytest.mark.parametrize("grad", [False, True])
def test_whoever_watches_calls_sees_the_operator(grad: bool) -> None:
    """Modes, classes, tracing and profiles: what goes past the dispatcher otherwise."""
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3, requires_grad=grad)
    operator, seen = torch.ops.leanconv.conv2d.default, list[Any]()

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Derived(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    ours.conv2d(x, w)  # a plan is kept
    for mode in (Functions(), Dispatched()):
        seen.clear()
        with mode:
            ours.conv2d(x, w)
        assert operator in seen
    seen.clear()
    ours.conv2d(x.as_subclass(Derived), w)
    assert operator in seen
    traced = torch.jit.trace(lambda *given: ours.conv2d(*given), (x, w))
    assert "leanconv::conv2d" in str(traced.graph)
    with torch.profiler.profile() as profile:
        ours.conv2d(x, w)
    assert "leanconv::conv2d" in [each.key for each in profile.key_averages()]


@pytest.mark.parametrize("stride", [1.0, "1", (1.0, 1), None, (1, 1, 1)])
def test_arguments_of_other_types_are_errors_of_torch(stride: Any) -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    ours.conv2d(x, w, stride=(1, 1))  # a plan is kept
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        ours.conv2d(x, w, stride=stride)
    assert torch.equal(ours.conv2d(x, w, None, [1, 1]), ours.conv2d(x, w, None, 1))


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_sizes_compile_nothing_after_the_second(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forms, plain = set[str](), compiler._library

    def counted(*given: Any) -> Any:
        library = plain(*given)
        forms.update(library._addresses)
        return library

    monkeypatch.setattr(compiler, "_library", counted)
    w, bias = torch.randn(16, 16, 1, 1, requires_grad=True), torch.randn(16, requires_grad=True)
    known = 0
    for number, (batch, *size) in enumerate([(8, 20, 20), (5, 20, 20), (3, 20, 20), (8, 32, 24)]):
        x = torch.randn(batch, 16, *size).contiguous(memory_format=torch.channels_last)
        getattr(ours, name)(x.requires_grad_(), w, bias).sum().backward()
        assert number < 2 or len(forms) == known
        known = len(forms)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("side", [8, 64])  # from malloc as it comes, and from PyTorch
def test_results_are_no_views_and_lie_as_those_of_torch(form: Any, side: int) -> None:
    x = torch.randn(2, 8, side, side).contiguous(memory_format=form).requires_grad_()
    w = torch.randn(8, 8, 3, 3, requires_grad=True)
    for _ in range(3):
        y, like = (conv(x, w, padding=1) for conv in (ours.conv2d, F.conv2d))
        assert not y._is_view()
        assert (y.shape, y.stride(), y.storage_offset()) == (like.shape, like.stride(), 0)
        y.relu_()  # which PyTorch refuses for views that a function returns
        found = torch.autograd.grad(y.sum(), (x, w))
        for own, torch_own in zip(
            found, torch.autograd.grad(like.relu().sum(), (x, w)), strict=True
        ):
            torch.testing.assert_close(own, torch_own, rtol=1e-3, atol=1e-3)
