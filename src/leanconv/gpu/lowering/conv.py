"""The algorithms of convolution on the device: what each rejects, and its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from leanconv.algorithms.parameters import Parameters, one_of, parameter, parse_choice
from leanconv.errors import SpecError
from leanconv.gpu.lowering.boxes import best_boxing, boxes_reject, lower_boxes
from leanconv.gpu.lowering.conv_problem import ConvProblem
from leanconv.gpu.lowering.depthwise import DepthwiseParameters, lower_depthwise
from leanconv.gpu.lowering.gemm import Product, best_blocking, lower_product
from leanconv.gpu.lowering.lowered import Lowered
from leanconv.gpu.lowering.patches import (
    TAPS,
    WINDOWS,
    best_patching,
    lower_patches,
    patches_reject,
)
from leanconv.gpu.lowering.slices import best_slicing, lower_slices, slices_reject
from leanconv.gpu.lowering.unfold_methods import (
    Im2winParameters,
    MecParameters,
    lower_im2col,
    lower_im2win,
    lower_mec,
)
from leanconv.gpu.lowering.windows import conv_windows
from leanconv.gpu.lowering.winograd import WinogradParameters, lower_winograd, winograd_rejects
from leanconv.gpu.machine import Machine
from leanconv.records import dataclass

P = TypeVar("P", bound=Parameters)
_STEP = 32  # elements of k by which windows are laid


@dataclass(frozen=True)
class DeviceAlgorithm(Generic[P]):
    """One way to convolve.

    Attributes:
        name: as on the CPU.
        reject: what it says beside the rank of a problem that it cannot compute, or None.
        parameters: the record of those that may go with it, such as `solution` in `mec:solution=B`.
        make: the launches, given weights (K, C/g, kh, kw) and parameters; see `lower`.
        automatic: whether it is considered where the user asks for none.
        has_depth: whether it knows three spatial axes.
    """

    name: str
    parameters: type[P]
    reject: Callable[[ConvProblem], str | None]
    make: Callable[[ConvProblem, np.ndarray, Machine, P], Lowered]
    automatic: bool = False
    has_depth: bool = False

    def rejects(self, problem: ConvProblem) -> str | None:
        """A reason why it cannot compute a problem, or None."""
        if len(problem.spec.size) > 2 and not self.has_depth:
            return "three spatial axes; expected one or two"
        return self.reject(problem)

    def lower(
        self, problem: ConvProblem, w: np.ndarray, machine: Machine, given: Parameters | None = None
    ) -> Lowered:
        """The launches with the parameters that are given."""
        given = self.parameters() if given is None else given
        assert isinstance(given, self.parameters)
        return self.make(problem, w, machine, given)


def _no_reason(problem: ConvProblem) -> str | None:
    del problem
    return None


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """How tiles of the input are loaded; see `lower_direct`."""

    loads: str | None = parameter(one_of("tma", TAPS, WINDOWS, "boxes", "pointers", "slices"))


def lower_direct(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: DirectParameters
) -> Lowered:
    """Implicit GEMM over windows read in place, by pointers or by bulk tensor copies (`loads`).

    `loads=tma` takes the tensor map that is expected to be faster, `taps` and `windows` name one:
    each tap a patch of the input, or the input as an overlapping view of its windows.
    `loads=boxes` copies rows of both operands: 1x1 convolutions in float16, bfloat16 or tf32.
    `loads=slices` shares k among the warps of a program: matrix products of few rows.
    """
    spec, loads = problem.spec, parameters.loads
    windows = conv_windows(spec, _STEP)
    columns = spec.out_channels // spec.groups
    segments = np.moveaxis(w, 1, -1).reshape(spec.out_channels, windows.segments, windows.length)
    product = Product(
        windows, columns, problem.dtype, problem.x, problem.y, problem.epilogue, problem.name
    )
    finite = bool(np.isfinite(w).all())
    sliced = loads == "slices" or (loads is None and not problem.lean)
    slicing = best_slicing(problem, machine, finite) if sliced else None
    if loads == "slices":
        if slicing is None:
            reason = slices_reject(problem) or "no arithmetic that is allowed"
            raise SpecError(f"loads is {loads!r} for {spec}: {reason}; leave loads out")
        return lower_slices(problem, w, slicing)
    boxed = loads == "boxes" or (loads is None and not problem.lean)
    boxing = best_boxing(problem, machine) if boxed else None
    if loads == "boxes":
        if boxing is None:
            refused = boxes_reject(problem, machine)
            raise SpecError(f"loads is {loads!r} for {spec}: {refused}; leave loads out")
        return lower_boxes(problem, w, boxing)
    if loads != "pointers" and (loads or not problem.lean):
        forms = tuple(form for form in (WINDOWS, TAPS) if loads in (None, "tma", form))
        patching = best_patching(problem, machine, finite, forms)
        if loads and patching is None:
            reasons = dict.fromkeys(
                patches_reject(problem, machine, form) for form in reversed(forms)
            )
            shown = "; ".join(r or "the weights are not finite" for r in reasons)
            raise SpecError(f"loads is {loads!r} for {spec}: {shown}; leave loads out")
        other, _ = best_blocking(product, finite, problem.arithmetics, machine)
        least = min(other.estimate_s, patching.estimate_s if patching else other.estimate_s)
        if boxing and boxing.estimate_s < min(least, slicing.estimate_s if slicing else least):
            return lower_boxes(problem, w, boxing)
        if slicing and slicing.estimate_s < least:
            return lower_slices(problem, w, slicing)
        if patching and (loads or patching.estimate_s < other.estimate_s):
            return lower_patches(problem, w, patching)
    return lower_product(
        product, segments, problem.arithmetics, machine, "direct", lean=problem.lean
    )


def _depthwise_rejects(problem: ConvProblem) -> str | None:
    spec = problem.spec
    if spec.in_channels != spec.groups:
        return (
            f"groups is {spec.groups}; expected one group for each of {spec.in_channels} channels"
        )
    return None


def _unfold_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.groups > 1:
        return f"groups is {problem.spec.groups}; expected 1"
    return None


def _mec_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.dilation[0] > 1 and problem.spec.kernel[0] > 1:
        return "the kernel is dilated along h, so that no window is contiguous"
    return _unfold_rejects(problem)


def _im2win_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.dilation[1] > 1 and problem.spec.kernel[1] > 1:
        return "the kernel is dilated along w, so that no window is contiguous"
    return _unfold_rejects(problem)


DEVICE_ALGORITHMS: tuple[DeviceAlgorithm[Any], ...] = (
    DeviceAlgorithm(
        "depthwise", DepthwiseParameters, _depthwise_rejects, lower_depthwise, automatic=True
    ),
    DeviceAlgorithm(
        "direct", DirectParameters, _no_reason, lower_direct, automatic=True, has_depth=True
    ),
    DeviceAlgorithm("winograd", WinogradParameters, winograd_rejects, lower_winograd),
    DeviceAlgorithm("im2col", Parameters, _unfold_rejects, lower_im2col),
    DeviceAlgorithm("mec", MecParameters, _mec_rejects, lower_mec),
    DeviceAlgorithm("im2win", Im2winParameters, _im2win_rejects, lower_im2win),
)
_BY_NAME = {algorithm.name: algorithm for algorithm in DEVICE_ALGORITHMS}


def choose_algorithm(
    problem: ConvProblem, w: np.ndarray, machine: Machine, algorithm: str | None = None
) -> Lowered:
    """The launches of the algorithm that is named, or of the one with the least estimated time.

    Raises:
        SpecError: there is no such algorithm or parameter, or it rejects the problem.
    """
    if algorithm is None:
        possible = [a for a in DEVICE_ALGORITHMS if a.automatic and a.rejects(problem) is None]
        made = [a.lower(problem, w, machine) for a in possible]
        return min(made, key=lambda lowered: lowered.estimate_s)
    known = {name: each.parameters for name, each in _BY_NAME.items()}
    choice = parse_choice(algorithm, known, " on this device")
    chosen = _BY_NAME[choice.algorithm]
    reason = chosen.rejects(problem)
    if reason:
        raise SpecError(f"algorithm {chosen.name!r} cannot compute {problem.spec}: {reason}")
    return chosen.lower(problem, w, machine, choice.parameters)
