"""The operators of `leanconv.torch`: PyTorch's own checks of them, and of their gradients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed: leanconv[torch]")

import leanconv.torch as ours  # noqa: E402

pytestmark = pytest.mark.once
NAMES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def operator(name: str) -> Any:
    return getattr(torch.ops.leanconv, name).default


def example(name: str, dtype: Any = torch.float64, grad: bool = True) -> tuple[Any, ...]:
    """Arguments of a convolution with groups, unequal steps and a bias."""
    rank, transposed = int(name[-2]), "transpose" in name
    torch.manual_seed(rank)
    size, kernel = (5, 6, 7)[-rank:], (2, 3, 2)[-rank:]
    stride, padding, dilation = (1, 2, 1)[-rank:], (1, 0, 1)[-rank:], (1, 1, 2)[-rank:]
    x = torch.randn(2, 4, *size, dtype=dtype, requires_grad=grad)
    w_shape = (4, 3, *kernel) if transposed else (6, 2, *kernel)
    w = torch.randn(*w_shape, dtype=dtype, requires_grad=grad)
    bias = torch.randn(6, dtype=dtype, requires_grad=grad)
    if transposed:
        return x, w, bias, stride, padding, (0, 1, 0)[-rank:], 2, dilation
    return x, w, bias, stride, padding, dilation, 2


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Check values, and that they lie as PyTorch's do."""
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    assert found.dtype == expected.dtype
    if found.numel():
        largest = max(1.0, float(expected.detach().abs().max()))
        assert float((found - expected).detach().abs().max()) <= tolerance * largest


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    x, *others = example(name)
    torch.library.opcheck(operator(name), (x, *others))
    image = x[0].detach().requires_grad_()
    torch.library.opcheck(operator(name), (image, *others))
    without = (x.detach() if "transpose" in name else x.detach()[:, :2]), others[0].detach()
    torch.library.opcheck(operator(name), without)
    y = operator(name)(x, *others).detach()
    for mask in ([True, True, True], [False, True, False]):
        given_grad = torch.randn_like(y).requires_grad_()
        backward = operator(f"{name}_backward")
        torch.library.opcheck(backward, (given_grad, x, others[0], *others[2:], mask))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_opcheck_of_channels_last(name: str, layout: Any) -> None:
    x, w, *others = example(name, torch.float32)
    for given_x, given_w in ((torch.channels_last, layout), (layout, torch.channels_last)):
        each = (x, given_x), (w, given_w)
        laid = [t.detach().to(memory_format=form).requires_grad_() for t, form in each]
        torch.library.opcheck(operator(name), (*laid, *others))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_torch(name: str, dtype: Any) -> None:
    arguments = example(name, dtype)
    found, expected = (getattr(m, name)(*arguments) for m in (ours, torch.nn.functional))
    close(found, expected, TOLERANCE[dtype])
    dy = torch.randn_like(expected)
    gradients = (torch.autograd.grad(y, arguments[:3], dy) for y in (found, expected))
    for each, other in zip(*gradients, strict=True):
        close(each, other, 10 * TOLERANCE[dtype])


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, tuple[Any, ...]]:
    """A convolution of few channels, in float64, by PyTorch's arguments."""
    name = draw(st.sampled_from(NAMES))
    rank, transposed = int(name[-2]), "transpose" in name
    numbers = st.integers(1, 3)

    def each(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=rank, max_size=rank)))

    groups, of_x, of_y, batch = (draw(numbers) for _ in range(4))
    kernel, stride, dilation = each(numbers), each(numbers), each(numbers)
    most = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padding = tuple(draw(st.integers(0, n)) for n in most)
    more = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    size = tuple(
        max(1, d * (k - 1) + 1 - 2 * p) + draw(st.integers(0, 2))
        for d, k, p in zip(dilation, kernel, padding, strict=True)
    )
    if transposed:
        padding = (0,) * rank
    torch.manual_seed(draw(st.integers(0, 1000)))

    def tensor(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=draw(st.booleans()))

    x = tensor(*([batch] if draw(st.booleans()) else []), of_x * groups, *size)
    w = tensor(*((of_x * groups, of_y) if transposed else (of_y * groups, of_x)), *kernel)
    bias = tensor(of_y * groups) if draw(st.booleans()) else None
    if transposed:
        return name, (x, w, bias, stride, padding, more, groups, dilation)
    return name, (x, w, bias, stride, padding, dilation, groups)


@given(convolutions())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_gradients_of_any_convolution(drawn: tuple[str, tuple[Any, ...]]) -> None:
    name, (x, w, bias, *window) = drawn
    tensors = [x, w, *([] if bias is None else [bias])]

    def convolve(*given_tensors: Any) -> Any:
        both = given_tensors if bias is not None else (*given_tensors, None)
        return getattr(ours, name)(*both, *window)

    close(convolve(*tensors), getattr(torch.nn.functional, name)(x, w, bias, *window), 1e-12)
    if any(each.requires_grad for each in tensors):
        assert torch.autograd.gradcheck(convolve, tensors, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(convolve, tensors, fast_mode=True)
