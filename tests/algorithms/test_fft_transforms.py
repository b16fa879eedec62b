"""Transforms as networks and as code, against numpy.fft; tiles that cover every output once."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.algorithms.common.linear_code import emit_program
from leanconv.algorithms.fft.layout import bin_count
from leanconv.algorithms.fft.network import (
    Network,
    complex_forward,
    complex_inverse,
    real_forward,
    real_inverse,
    transposed,
)
from leanconv.algorithms.fft.overlap_save import axes_of
from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.geometry import Window
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64
from support.exact_linear import evaluate
from support.kernel_runner import run_kernel

LENGTHS = (4, 8, 16, 32, 64)


def packed(x: np.ndarray) -> np.ndarray:
    """A real transform as [re 0, re N/2, re 1, im 1 …]."""
    z = np.fft.rfft(x)
    between = np.stack([z[1:-1].real, z[1:-1].imag], 1).reshape(-1)
    return np.concatenate([[z[0].real, z[-1].real], between])


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], 1).reshape(-1)


def draw(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(n).uniform(-1, 1, n).astype(dtype)


def run(network: Network, values: np.ndarray) -> np.ndarray:
    return np.array(evaluate(network.program, list(values), float))


@pytest.mark.parametrize("n", LENGTHS)
def test_networks_are_the_transforms(n: int) -> None:
    x, z = draw(n), draw(2 * n)[:n] + 1j * draw(2 * n)[n:]
    np.testing.assert_allclose(run(real_forward(n), x), packed(x), atol=1e-13 * n)
    np.testing.assert_allclose(
        run(complex_forward(n), pairs(z)), pairs(np.fft.fft(z)), atol=1e-13 * n
    )
    back = pairs(np.fft.ifft(z) * n)
    for kept in (1, n // 2 - 1, n):
        got = run(complex_inverse(n, kept), pairs(z))
        np.testing.assert_allclose(got, back[: 2 * kept], atol=1e-13 * n)
        spectrum = packed(x) * np.r_[1, 1, np.full(n - 2, 2)]
        got = run(real_inverse(n, kept), spectrum)
        np.testing.assert_allclose(got, n * x[:kept], atol=1e-13 * n)


@pytest.mark.parametrize(("n", "real", "of_complex"), [(16, 68, 160), (32, 188, 424)])
def test_operations_stay_few(n: int, real: int, of_complex: int) -> None:
    """Below 4 n log2 n - 6 n + 8, the additions and multiplications of the split radix."""
    assert real_forward(n).operations <= real
    assert complex_forward(n).operations <= of_complex
    assert real_inverse(n, n).operations <= real
    half = complex_inverse(n, n // 4)
    assert half.operations < of_complex  # what nobody reads is left out


def test_transposed_network_is_the_transposed_matrix() -> None:
    network, n = real_forward(16), 16
    matrix = np.stack([run(network, row) for row in np.eye(n)], 1)
    turned = np.stack([run(transposed(network), row) for row in np.eye(n)], 1)
    np.testing.assert_allclose(turned, matrix.T, atol=1e-15)


@dataclass(frozen=True)
class Apply(Kernel):
    """A network on vectors that stand one after the other."""

    name: str
    length: int
    kept: int
    dtype: str

    @property
    def network(self) -> Network:
        made = {
            "real": lambda: real_forward(self.length),
            "complex": lambda: complex_forward(self.length),
            "real back": lambda: real_inverse(self.length, self.kept),
            "complex back": lambda: complex_inverse(self.length, self.kept),
        }
        return made[self.name]()

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 1

    def emit(self, target: Target) -> str:
        e, lanes, element = Function(self.NAME), target.lanes(self.dtype), self.dtype.llvm
        x, y = e.pointer(0, element), e.pointer(1, element)
        with e.chunks(1):
            emit_program(
                e,
                self.network.program,
                lambda i: e.load(x.at(i * lanes), vector(element, lanes)),
                lambda i, value: e.store(value, y.at(i * lanes)),
            )
        return e.finish()


@pytest.mark.parametrize("name", ["real", "complex", "real back", "complex back"])
@pytest.mark.parametrize(("length", "dtype"), [(16, FLOAT32), (32, FLOAT32), (16, FLOAT64)])
def test_code_computes_the_network(name: str, length: int, dtype: str) -> None:
    kernel = Apply(name, length, length // 2 + 3, dtype)
    lanes, network = host().lanes(dtype), kernel.network
    x = np.random.default_rng(1).uniform(-1, 1, (network.inputs, lanes)).astype(dtype)
    y = np.full((len(network.outputs), lanes), np.nan, dtype)
    got = run_kernel(kernel, x, y)
    expected = np.array(evaluate(network.program, list(x.astype(np.float64)), float))
    unit = np.finfo(dtype).eps
    assert np.abs(got - expected).max() <= 2 * unit * np.abs(expected).max()


@pytest.mark.parametrize("length", [16, 32, 64])
def test_bins_hold_as_many_numbers_as_the_tile(length: int) -> None:
    assert 2 * bin_count(length) - 4 == length * length  # four bins are real


@pytest.mark.parametrize("kernel", [1, 2, 3, 7, 11, 16, 17, 31, 40])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (3, 1), (1, 5), (2, 2), (4, 6)])
@pytest.mark.parametrize("length", [16, 32])
def test_parts_and_phases_hold_every_tap_once(
    kernel: int, stride: int, dilation: int, length: int
) -> None:
    size = 70
    reach = (kernel - 1) * dilation + 1
    out = (size + 6 - reach) // stride + 1 if reach <= size + 6 else 1
    window = Window(
        (1, 1, size), (1, 1, out), (1, 1, kernel), (1, 1, stride), (1, 1, dilation), (0, 0, 3)
    )
    for axis in axes_of(window, 2, length):
        taps = []
        for phase in range(axis.phases):
            for part in range(axis.parts):
                here = list(range(kernel))[axis.positions(phase, part)]
                assert len(here) <= length - axis.step + 1
                taps += here
        assert sorted(taps) == list(range(kernel))
        assert max(axis.counts) <= axis.step
        covered = axis.residues * axis.tiles * axis.step
        assert covered >= out
