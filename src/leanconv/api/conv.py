"""One convolution, planned once and run many times."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.algorithms import Candidate, select
from leanconv.algorithms.magnitudes import Magnitudes, are_small
from leanconv.algorithms.parameters import AUTO, Choice
from leanconv.api.any_sizes import Found
from leanconv.api.array_plan import ArrayPlan
from leanconv.api.backend import Plan
from leanconv.api.borders import ZEROS, BorderedPlan, bordered
from leanconv.api.conv_arguments import Constants, checked_spec, holds_codes
from leanconv.api.conv_choice import ConvChoice, conv_problem, needed_bytes
from leanconv.api.options import PlanOptions, checked_flag, checked_precision
from leanconv.api.packed_constants import PackedConstants
from leanconv.collector import fewer_collections
from leanconv.errors import SpecError, memory_reported
from leanconv.planner.candidate_program import candidate_program
from leanconv.progress import Progress, checked_progress, step, working
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import Memory
from leanconv.runtime.outputs import Outputs
from leanconv.runtime.pool import default_threads
from leanconv.runtime.program import Program, Slot
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps
from leanconv.target import Target
from leanconv.types import UINT8, Precision
from leanconv.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from leanconv.api.integer_conv import IntegerPlan


def plan_conv2d(
    x_shape: Sequence[int],
    w: np.ndarray,
    bias: np.ndarray | None = None,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    layout: str = "NCHW",
    algorithm: str | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    tune: bool = False,
    reproducible: bool = False,
    *,
    residual: bool = False,
    slope: np.ndarray | None = None,
    device: str = "cpu",
    precision: str | None = None,
    x_dtype: str | None = None,
    progress: Progress | None = None,
    padding_mode: str = "zeros",
) -> Plan:
    """Plan one convolution: choose the algorithm, emit its code, pack its weights.

    y = activation(conv(x, w) + bias + residual). One, two and three spatial axes work alike:
    `plan_conv1d` and `plan_conv3d` are this function.

    Args:
        x_shape: (N, C, H, W), or (N, H, W, C) for layout "NHWC".
        w: weights (K, C / groups, kh, kw), float32 or float64, or float16 or bfloat16 (of the
            package ml_dtypes), whose sums are float32: the dtype of all arrays. Of int8 or uint8: x
            is of bytes, too, bias and y are int32, every sum exact.
        bias: (K,), or None.
        stride, dilation: an int, or (h, w); dilation 1 is dense.
        padding: an int, (h, w), (top, left, bottom, right), "same" or "valid".
        groups: channel groups.
        activation: None, or a name with its parameters: "relu", "relu6", "clip:0:1",
            "leaky_relu:0.1", "prelu", "sigmoid", "silu", "hard_sigmoid", "hard_swish", "tanh",
            "gelu", "gelu_tanh", "elu".
        layout: "NCHW" or "NHWC", of input, residual and output.
        algorithm: the one to use; None takes the best.
        memory_limit: bytes, or text such as "1 MiB", for workspace and packed weights together.
        max_error: the largest relative error accepted: max|y - exact| / max|exact|.
        threads: threads that take part; by default the cores that this process may use.
        tune: measure the few choices that are estimated best, once, and take the fastest; what was
            measured is kept in the settings' cache folder for later processes. Progress is logged.
        reproducible: an image gives the same bits alone and within any batch, with any threads and
            memory limit: the algorithm, and what of its parameters is left open and changes bits,
            are chosen as for one image without a limit; where these do not fit a limit, no others
            are taken. With `tune` one image is measured, on one thread, and other plans give the
            same bits as long as the cache folder keeps what was measured.
            (Without it, one plan gives the same bits with any threads, run after run.)
        residual: whether each run is given a tensor of y's shape to add.
        slope: (K,), the slopes of "prelu".
        device: "cpu", or "cuda" or "cuda:1" for a GPU, whose arrays come and go through DLPack.
        precision: "float16" or "bfloat16" keeps the weights of float32 arrays in that type; sums
            are float32. None: as the arrays are. On a GPU, how products are made: None is as
            accurate as the arrays' dtype; "ieee", "tf32x3" and "fp16x3" name a method, "tf32"
            accepts its 10 bits.
        x_dtype: "uint8" (None) or "int8", of x where w is of integers; else that of w.
        progress: a function of (stage, done, total), called while this plans, as by `load`.
        padding_mode: what padding shows of the image: "zeros"; "reflect" (dcb|abcd|cba, as OpenCV
            by default), "replicate" (aaa|abcd|ddd) or "circular" (bcd|abcd|abc), as PyTorch has
            them; "symmetric" (cba|abcd|dcb, SciPy's "reflect"). All but zeros copy the image first,
            into memory that is counted, and plan its convolution without padding.

    Returns:
        The plan; call it with x. A `ConvPlan` on the CPU, an `IntegerPlan` for integers.

    Raises:
        SpecError: the arguments describe no convolution, or the algorithm rejects it; or `tune` and
            `reproducible` are given together while no cache is allowed.
        InputError: w, bias or slope is no array of the dtype and shape expected.
        BudgetError: the plan does not keep the memory limit or the error.
    """
    options = PlanOptions.checked(algorithm, memory_limit, max_error, threads, tune, reproducible)
    arguments = ConvArguments(stride, padding, dilation, groups, activation, layout)
    residual, constants = checked_flag("residual", residual), Constants(w, bias, slope)
    checked_progress(progress)
    border = None
    if padding_mode != ZEROS:
        border, arguments = bordered(x_shape, w, arguments, padding_mode, device)
    if device != "cpu":
        from leanconv.gpu import backend

        backend.check_options(**options.of_cpu)
        with working("convolution", progress):
            return backend.plan_conv(
                device, precision, x_shape, constants, arguments, residual, options.limits
            )
    options = options._replace(precision=checked_precision(precision))
    given = constants, arguments, residual, x_dtype, progress
    if border is None:
        return cpu_plan(x_shape, *given, options)
    plan = border.within(options, lambda left: cpu_plan(border.shape, *given, left))
    return BorderedPlan(plan, border)


def cpu_plan(
    x_shape: Sequence[int],
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    x_dtype: str | None,
    progress: Progress | None,
    options: PlanOptions,
) -> ConvPlan | IntegerPlan:
    """`plan_conv2d` on the CPU, of images with zeros around them."""
    w = constants.w
    if holds_codes(w):
        from leanconv.api.integer_conv import IntegerPlan, checked_integer_spec

        given = UINT8 if x_dtype is None else x_dtype
        spec = checked_integer_spec(x_shape, given, constants, arguments, residual, options)
        with working(str(spec), progress):
            return IntegerPlan(spec, constants, options)
    spec = checked_spec(x_shape, constants, arguments, residual, options.precision)
    if x_dtype is not None and x_dtype != spec.precision.x:
        raise SpecError(f"x_dtype is {x_dtype!r} for w of {w.dtype}; expected None, or that of w")
    with working(str(spec), progress):
        return ConvPlan(spec, constants, options)


class ConvPlan(ArrayPlan):
    """One convolution, ready to run. Calls from several threads run in turn.

    `copy.deepcopy(plan)` has memory of its own, so that both can run at the same time;
    `copy.copy` shares it. A plan cannot be pickled: its weights are packed for this CPU.

    Attributes:
        spec: what is computed.
        algorithm: how.
        candidate: its choice, kernels, temporaries and packed constants, for reading only.
        threads: threads that take part.
        workspace_bytes: memory that runs work in.
        weight_bytes: packed weights, bias and slopes.
        predicted_error: expected relative error in the max norm, for data of random sign.
        packed: weights, bias and slopes as kernels read them.
        shares: whether plans for other sizes share them.
    """

    instead = "send the weights, and call leanconv.plan_conv2d where the plan is wanted"

    @memory_reported("planning a convolution")
    @fewer_collections()
    def __init__(
        self,
        spec: ConvSpec,
        constants: Constants,
        options: PlanOptions,
        outputs: Outputs | None = None,
        found: Found | None = None,
    ) -> None:
        """Plan.

        Args:
            spec, constants, options: what is computed, and within which limits.
            outputs: the memory of large results; the plan's own if None.
            found: how it is computed, and packed constants that it shares; None to choose and pack.
        """
        self.spec, self.threads = spec, options.threads or default_threads()
        outputs = Outputs() if outputs is None else outputs
        self._new = outputs.maker(spec.output_shape, spec.precision.y)
        self.shares = found is not None
        self._target: Target = planning_target()
        # Choose the algorithm and its parameters.
        if found is None:
            problem = conv_problem(spec, options.max_error)
            self._problem = replace(problem, small_weights=are_small(constants.w))
            candidate = self._choose(options)
        else:
            self._problem, candidate = found.problem, found.candidate
        self.candidate, self.algorithm = candidate, candidate.choice.algorithm
        self.predicted_error = candidate.choice.error
        # Pack the constants.
        self.packed = self._packed_by(found, constants)
        self.weight_bytes = self.packed.bytes
        self.workspace_bytes = candidate.workspace_bytes(self.threads)
        needed = needed_bytes(candidate, self.threads)
        assert self.memory_bytes == needed, f"{self.memory_bytes} bytes, not {needed}"
        # Allocate, compile, and bind the program to the memory.
        self._allocate()

    def _choose(self, options: PlanOptions) -> Candidate:
        """The fastest candidate that keeps the limits, by measurement if the options say so.

        Raises:
            BudgetError: there is none.
        """
        limits = options.memory_limit, options.max_error
        requested = AUTO if options.algorithm is None else select.choice_named(options.algorithm)
        tuned = requested
        if options.tune and requested == AUTO:
            tuned = self._tuned(options.reproducible, options.memory_limit)
        choosing = ConvChoice(
            self._problem, self._target, self.threads, tuned, options.reproducible, *limits
        )
        if tuned != requested and not choosing.is_kept():
            choosing = replace(choosing, requested=requested)
        return choosing.best()

    def _tuned(self, reproducible: bool, memory_limit: int | None) -> Choice:
        """The fastest choice by measurement, on one image if the plan is to be reproducible."""
        from leanconv.planner import tuner

        if reproducible:
            found = tuner.tune_for_any_batch(self._problem, self._target)
        else:
            limit = memory_limit
            found = tuner.tune(self._problem, self._target, self.threads, memory_limit=limit)
        return found.choice

    def _allocate(self) -> None:
        """Allocate the workspace, and bind the program to it and to the weights."""
        self._memory = Memory()
        self._memory.keep("weights", self.packed.block)
        workspace = self._memory.allocate("workspace", self.workspace_bytes)
        self._program = self._make_program(workspace.address)
        types = self.spec.precision
        self._bind(self.spec, types.x, types.y, self._new, self._program.run)

    def __copy__(self) -> ConvPlan:
        copied = object.__new__(ConvPlan)
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> ConvPlan:
        copied = memo[id(self)] = copy.copy(self)
        copied.packed = self.packed.copied()
        copied._allocate()
        return copied

    def _make_program(self, workspace: int) -> Program:
        roles = ["x", *(["residual"] if self.spec.residual else []), "y"]
        operands: dict[str, int | Slot] = {role: Slot(i) for i, role in enumerate(roles)}
        operands |= self.packed.operands
        return candidate_program(self.candidate, self._target, self.threads, operands, workspace)

    @property
    def parameters(self) -> str:
        """What the algorithm chose, for people: `"F(4x4, 3x3) blocks of 9 tiles, …"`."""
        return self.candidate.details

    @property
    def selector(self) -> str:
        """The text that selects the same arithmetic as `algorithm=`: `"winograd:m=4x4,…"`."""
        return str(self.candidate.choice)

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.workspace_bytes + self.weight_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan, counted as they were."""
        return self._memory.used_bytes

    def __repr__(self) -> str:
        return f"<ConvPlan {self.spec}: {self.algorithm}, {format_bytes(self.memory_bytes)}>"

    def explain(self) -> str:
        """Say which algorithm was chosen, what it needs, and why the others were not chosen."""
        own = self.candidate.choice.cycles
        if math.isnan(own):  # parameters that the user gave
            own = select.estimated_cycles(self.candidate.choice, self._problem, self._target)
        lines = [
            f"{self.spec}: {self.algorithm}, {self.spec.padding_text}, "
            f"{self.spec.flops / 1e6:.2f} MFLOP, workspace "
            f"{format_bytes(self.workspace_bytes)}, weights {format_bytes(self.weight_bytes)}, "
            f"expected error {self.predicted_error:.1e}",
            f"  estimated time {self._shared(own)}, {counted(self.threads, 'thread')}",
            f"  the error is {self.magnitudes}",
            f"  {self._target.costs_text}",
        ]
        if not self.spec.precision.is_uniform:
            lines.insert(1, f"  {storage_text(self.spec.precision)}")
        best: dict[str, tuple[float, Candidate]] = {}
        for choice, candidate in select.choices(self._problem, self._target, lean=True):
            best.setdefault(choice.algorithm, (choice.cycles, candidate))
        for other in select.expected(self._problem):
            if other.name != self.algorithm:
                reason = other.refusal(self._problem, self._target)
                reason = reason or select.lost_weights(other, self._problem)
                lines.append(f"  {other.name}: {reason or self._beside(other.name, best)}")
        return "\n".join(lines)

    def _shared(self, cycles: float) -> str:
        """A time for estimated cycles of one core."""
        costs = self._target.costs
        return format_ns(costs.shared_ns(costs.ns(cycles), self.threads))

    def _beside(self, name: str, best: dict[str, tuple[float, Candidate]]) -> str:
        """What another algorithm's best choice would take."""
        if name not in best:
            return "possible, but expected to err too much"
        cycles, candidate = best[name]
        needed = format_bytes(needed_bytes(candidate, self.threads))
        takes = f"{self._shared(cycles)}, {needed}, expected error {candidate.choice.error:.1e}"
        if self.algorithm not in best:  # the user requested it
            return takes
        ratio = cycles / max(1.0, best[self.algorithm][0])
        return f"{ratio:.2f} times the time by estimate: {takes}"

    def _fill(self, packed: PackedConstants, constants: Constants) -> PackedConstants:
        """Pack constants into memory."""
        w, bias, slope = constants
        sums = self.spec.precision.accumulate
        given = ("bias", bias), ("slope", slope)
        w = np.ascontiguousarray(w)
        channels = {k: np.ascontiguousarray(v, sums) for k, v in given if v is not None}
        step("packing weights", 0, w.nbytes)
        packed.fill(
            lambda: self.candidate.packing(w, channels),
            (w, *channels.values()),
            self._magnitudes_of(constants),
        )
        step("packing weights", w.nbytes, w.nbytes)
        return packed

    def _packed_by(self, found: Found | None, constants: Constants) -> PackedConstants:
        """The packed constants: those of other plans that have them packed alike, or new ones."""
        if found is None:
            sizes = self.candidate.constant_bytes
            return self._fill(PackedConstants(sizes, self._target, self.threads), constants)
        channels = tuple(name for name in ("bias", "slope") if getattr(constants, name) is not None)
        recipe = self.candidate.packing_recipe(channels)
        return found.copy.packed(recipe, lambda: self._packed_by(None, constants))

    def _magnitudes_of(self, constants: Constants) -> Magnitudes:
        return select.magnitudes_of(self._problem, self.candidate, constants.w)

    @property
    def magnitudes(self) -> Magnitudes:
        """Of results and inputs for which `predicted_error` is stated."""
        return self.packed.magnitudes

    @memory_reported("packing weights")
    def repack(
        self, w: np.ndarray, bias: np.ndarray | None, slope: np.ndarray | None = None
    ) -> None:
        """Replace the weights by others of the same shapes; no run may be under way."""
        self._fill(self.packed, Constants(w, bias, slope))


def storage_text(types: Precision) -> str:
    """In which types operands are stored, and what is computed with them."""
    stored = f"input {types.x}, weights {types.w}, output {types.y}"
    if types.x == types.w == types.y:
        stored = f"input, weights and output {types.x}"
    return f"stored: {stored}; products and sums {types.accumulate}"
