"""Convolution through torch.fft: `plan_conv2d(..., device="cuda", algorithm="fft")`.

    y = irfft(rfft(x) conj(rfft(w))) where windows lie whole within the padded input

Channels stay last: for each frequency and group one product of (images, C/g) and (C/g, K/g), read
and written in place by strides. Only `TorchFft` imports torch in leanconv; NumPy takes its place in
tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from math import log2, prod
from typing import Any

import numpy as np

from leanconv.errors import BudgetError, InputError, MissingExtraError, SpecError
from leanconv.gpu.lowering.conv_problem import check_error
from leanconv.runtime.locks import Unpicklable
from leanconv.spec import PLAIN, Activation, ConvSpec
from leanconv.spec.arguments import check_residual
from leanconv.types import FLOAT32, FLOATS, DType
from leanconv.units import format_bytes, type_text

_PRECISIONS = (None, "ieee")
_FACTORS = (2, 3, 5, 7)  # of lengths that a transform is fast for


class TorchFft:
    """The functions of torch that `FftConvPlan` needs, on arrays of torch.

    Args:
        device: as torch calls it.

    Raises:
        MissingExtraError: torch is not installed.
    """

    def __init__(self, device: str) -> None:
        try:
            self._torch = import_module("torch")
        except ImportError as error:
            raise MissingExtraError(
                "algorithm='fft' on a GPU needs torch, which is not installed; expected torch with "
                "CUDA: see pytorch.org, or leave the algorithm out"
            ) from error
        self._device = device

    def given(self, array: Any) -> Any:
        """A user's array (DLPack, or of NumPy) on the device."""
        torch = self._torch
        if isinstance(array, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
        return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)

    def returned(self, array: Any, like: Any) -> Any:
        """A result as the kind of array that was given."""
        return array.cpu().numpy() if isinstance(like, np.ndarray) else array.contiguous()

    def forward(self, array: Any, size: tuple[int, ...]) -> Any:
        """The real transform along the axes behind the first, filled up with zeros to a size."""
        return self._torch.fft.rfftn(array, s=size, dim=tuple(range(1, 1 + len(size))))

    def backward(self, array: Any, size: tuple[int, ...]) -> Any:
        """The inverse of `forward`."""
        return self._torch.fft.irfftn(array, s=size, dim=tuple(range(1, 1 + len(size))))

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Without TF32, which a user may have allowed for his own products."""
        flags = self._torch.backends.cuda.matmul
        before, flags.allow_tf32 = flags.allow_tf32, False
        try:
            yield
        finally:
            flags.allow_tf32 = before

    def multiply(self, a: Any, b: Any) -> Any:
        """Matrix products, batch by batch, in no lower precision than that of the arrays."""
        with self._exact():
            return self._torch.bmm(a, b)

    def pad(self, array: Any, begin: tuple[int, ...]) -> Any:
        """Zeros in front along the axes behind the first."""
        widths = [0, 0]
        for each in reversed(begin):
            widths += [each, 0]
        return self._torch.nn.functional.pad(array, widths)

    def permute(self, array: Any, axes: tuple[int, ...]) -> Any:
        """Axes in another order, without a copy."""
        return array.permute(axes)

    def activate(self, array: Any, activation: Activation, slope: Any) -> Any:
        """An activation; `slope` is (channels,), for prelu."""
        functional, torch = self._torch.nn.functional, self._torch
        first, second = (*activation.parameters, 0.0, 0.0)[:2]
        return {
            "relu": lambda: torch.relu(array),
            "clip": lambda: torch.clamp(array, first, second),
            "leaky_relu": lambda: functional.leaky_relu(array, first),
            "prelu": lambda: torch.where(array >= 0, array, array * slope),
            "sigmoid": lambda: torch.sigmoid(array),
            "silu": lambda: functional.silu(array),
            "hard_sigmoid": lambda: torch.clamp(first * array + second, 0, 1),
            "hard_swish": lambda: functional.hardswish(array),
            "tanh": lambda: torch.tanh(array),
            "gelu": lambda: functional.gelu(array),
            "gelu_tanh": lambda: functional.gelu(array, approximate="tanh"),
            "elu": lambda: functional.elu(array, first),
        }[activation.kind]()

    def copy(self, target: Any, source: Any) -> None:
        """Write into an array."""
        self.given(target).copy_(source)


def fft_rejects(spec: ConvSpec, precision: str | None) -> str | None:
    """Why a convolution has no form by transforms here, or None."""
    if spec.dtype not in FLOATS:
        return f"dtype is {spec.dtype}; expected {' or '.join(FLOATS)}"
    if precision not in (*_PRECISIONS, spec.dtype):
        return f"precision is {precision!r}; expected 'ieee', {spec.dtype!r} or None"
    return None


def fast_length(least: int) -> int:
    """The next length that has no prime factor above 7."""
    length = max(1, least)
    while True:
        rest = length
        for factor in _FACTORS:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1


class FftConvPlan(Unpicklable):
    """One convolution through transforms, used like a `DeviceConvPlan`.

    torch allocates what a run works in, and runs on its current stream.

    Attributes:
        spec, algorithm, arithmetic, parameters: the convolution, and the way to compute it.
        size: of the transforms.
        workspace_bytes: the most that the tensors of a run take together, input and output apart;
            what cuFFT works in is its own.
        weight_bytes: spectra of the weights, bias and slopes.
        predicted_error: expected relative error in the max norm, for data of random sign.
    """

    algorithm = "fft"
    arithmetic = "ieee"

    instead = "send the weights, and call leanconv.plan_conv2d where the plan is wanted"

    def __init__(
        self,
        spec: ConvSpec,
        w: np.ndarray,
        bias: np.ndarray | None,
        slope: np.ndarray | None,
        memory_limit: int | None,
        max_error: float | None,
        precision: str | None,
        library: TorchFft,
    ) -> None:
        reason = fft_rejects(spec, precision)
        if reason:
            raise SpecError(f"algorithm 'fft' cannot compute {spec}: {reason}")
        self.spec, self._library = spec, library
        self.size = tuple(
            fast_length(extent + sum(pads))
            for extent, *pads in zip(spec.size, spec.pad_begin, spec.pad_end, strict=True)
        )
        self.parameters = f"transforms of {'x'.join(map(str, self.size))}"
        item = spec.dtype.bytes
        self._bins = prod(self.size[:-1]) * (self.size[-1] // 2 + 1)
        self.workspace_bytes = self._workspace(item)
        spectra = spec.out_channels * (spec.in_channels // spec.groups) * self._bins * 2 * item
        channels = sum(a.nbytes for a in (bias, slope) if a is not None)
        self.weight_bytes = spectra + channels
        # A transform's error grows with the root of its depth; sums over channels with random signs
        # keep it. The factor is that of the transforms of the CPU, which were measured.
        self.predicted_error = spec.dtype.roundoff * 4 * log2(max(2, prod(self.size)))
        self._check(memory_limit, max_error)
        self._spectra = self._transformed(w)
        self._bias, self._slope = (None if a is None else library.given(a) for a in (bias, slope))

    def _workspace(self, item: int) -> int:
        """The largest set of tensors alive at once."""
        spec, cells = self.spec, prod(self.size)
        padded = prod(e + b for e, b in zip(spec.size, spec.pad_begin, strict=True))
        image, last = spec.batch * spec.in_channels * item, spec.batch * spec.out_channels * item
        spectrum, product = 2 * image * self._bins, 2 * last * self._bins
        return max(image * padded + spectrum, spectrum + product, product + last * cells)

    def _check(self, memory_limit: int | None, max_error: float | None) -> None:
        if memory_limit is not None and self.memory_bytes > memory_limit:
            raise BudgetError(
                f"{self.spec} needs {self.memory_bytes} bytes by fft, the limit is "
                f"{memory_limit} bytes; give memory_limit={self.memory_bytes} or more, or leave "
                "the algorithm out",
                self.memory_bytes,
            )
        check_error(f"{self.spec}: fft", self.predicted_error, max_error)

    def _transformed(self, w: np.ndarray) -> Any:
        """conj(rfft(w)) as (bins * g, C/g, K/g), made once, in double precision."""
        spec, rank = self.spec, len(self.spec.size)
        spread = np.zeros(
            (
                *w.shape[:2],
                *((k - 1) * d + 1 for k, d in zip(spec.kernel, spec.dilation, strict=True)),
            )
        )
        cells: tuple[Any, ...] = (..., *(slice(None, None, d) for d in spec.dilation))
        spread[cells] = w
        axes = tuple(range(2, 2 + rank))
        # A kernel larger than the input has no windows: the spec refuses it before.
        spectra = np.conj(np.fft.rfftn(spread, self.size, axes))
        groups, each = spec.groups, spec.in_channels // spec.groups
        outputs = spec.out_channels // groups
        by_frequency = spectra.reshape(groups, outputs, each, self._bins).transpose(3, 0, 2, 1)
        kind = np.complex64 if spec.dtype == FLOAT32 else np.complex128
        batches = np.ascontiguousarray(by_frequency, kind).reshape(-1, each, outputs)
        return self._library.given(batches)

    @property
    def selector(self) -> str:
        """The text that selects this algorithm as `algorithm=`."""
        return self.algorithm

    @property
    def memory_bytes(self) -> int:
        """Workspace and spectra of the weights."""
        return self.workspace_bytes + self.weight_bytes

    def explain(self) -> str:
        """Say which transforms the plan computes, and the bytes that it needs."""
        spec = self.spec
        return (
            f"{spec}: fft through torch in ieee arithmetic ({self.parameters}), "
            f"{spec.flops / 1e6:.2f} MFLOP if computed directly, workspace "
            f"{format_bytes(self.workspace_bytes)} and what cuFFT takes, weights "
            f"{format_bytes(self.weight_bytes)}, expected error {self.predicted_error:.1e}"
        )

    def __call__(self, x: Any, out: Any = None, residual: Any = None) -> Any:
        """Convolve; arguments as of `DeviceConvPlan`.

        Returns:
            y: `out`, a NumPy array for a NumPy array, else torch's tensor on the device.

        Raises:
            InputError: an array does not fit the plan.
        """
        spec, library = self.spec, self._library
        check_residual(spec.residual, residual is not None)
        for label, array, shape in (
            ("x", x, spec.input_shape),
            ("residual", residual, spec.output_shape),
            ("out", out, spec.output_shape),
        ):
            if array is not None:
                _check_array(label, array, shape, spec.dtype)
        rank = len(spec.size)
        last, first = (0, *range(2, 2 + rank), 1), (0, 1 + rank, *range(1, 1 + rank))
        planes = spec.format == PLAIN
        given = library.given(x)
        y = self._convolved(library.permute(given, last) if planes else given)
        if self._bias is not None:
            y = y + self._bias
        if residual is not None:
            added = library.given(residual)
            y = y + (library.permute(added, last) if planes else added)
        if spec.activation is not None:
            y = library.activate(y, spec.activation, self._slope)
        if planes:
            y = library.permute(y, first)
        if out is None:
            return library.returned(y, x)
        library.copy(out, y)
        return out

    def _convolved(self, x: Any) -> Any:
        """The sums, channels last."""
        spec, library = self.spec, self._library
        groups, each = spec.groups, spec.in_channels // spec.groups
        if any(spec.pad_begin):
            x = library.pad(x, spec.pad_begin)
        spectrum = library.forward(x, self.size)
        bins = spectrum.shape[1:-1]
        batches = spectrum.reshape(spec.batch, self._bins * groups, each)
        del x, spectrum
        product = library.multiply(library.permute(batches, (1, 0, 2)), self._spectra)
        del batches
        # (bins * g, N, K/g) -> (N, bins, K)
        by_image = library.permute(product, (1, 0, 2))
        sums = library.backward(by_image.reshape(spec.batch, *bins, spec.out_channels), self.size)
        pairs = zip(spec.output_size, spec.stride, strict=True)
        cut = (slice(None), *(slice(0, (o - 1) * s + 1, s) for o, s in pairs))
        return sums[cut]


def _check_array(label: str, array: Any, shape: tuple[int, ...], dtype: DType) -> None:
    found = tuple(getattr(array, "shape", ()))
    kind = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    if found != shape or kind != dtype:
        raise InputError(f"{label} is {type_text(kind, found)}; expected {type_text(dtype, shape)}")
