"""A convolution with the places of its operands: what every algorithm is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window, triple
from leanconv.codegen.kernel import Kernel
from leanconv.spec import ConvSpec
from leanconv.target import Target


@dataclass(frozen=True)
class Problem:
    """One convolution to be lowered.

    Attributes:
        spec: sizes and epilogue; its layout is not used.
        x, y: where input and output (and residual) lie.
        window: the sliding window; that of the spec unless said otherwise.
        y_offset: elements from the output's start to the first one written.
    """

    spec: ConvSpec
    x: Access
    y: Access
    window: Window
    y_offset: int = 0

    @staticmethod
    def of(spec: ConvSpec, x: Access, y: Access) -> Problem:
        """The problem of a spec as it stands."""
        window = Window(
            triple(spec.size, 1),
            triple(spec.output_size, 1),
            triple(spec.kernel, 1),
            triple(spec.stride, 1),
            triple(spec.dilation, 1),
            triple(spec.pad_begin, 0),
        )
        return Problem(spec, x, y, window)

    @property
    def epilogue(self) -> Epilogue:
        """What happens to the sums."""
        return Epilogue(self.spec.bias, self.spec.residual, self.spec.activation)

    @property
    def group_inputs(self) -> int:
        """Input channels of one group."""
        return self.spec.in_channels // self.spec.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of one group."""
        return self.spec.out_channels // self.spec.groups

    def weights_3d(self, w: np.ndarray) -> np.ndarray:
        """View weights (K, C/g, kernel…) with all three kernel axes."""
        return w.reshape(*w.shape[:2], *self.window.kernel)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to compute a problem: a kernel, and how its constant operands are packed.

    Attributes:
        algorithm: its name.
        kernel: operands are x, w, then those of the epilogue, then y.
        pack: packs (weights, {"bias": …, "slope": …}) into constants by operand.
    """

    algorithm: str
    kernel: Kernel
    pack: Callable[[np.ndarray, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Algorithm:
    """One way of convolving.

    Attributes:
        name: as the user selects it.
        reject: says why a problem cannot be computed this way on a target, None if it can.
        cost: estimated cycles of one core for a problem that is not rejected.
        candidate: the best choice of its parameters for a problem that is not rejected.
    """

    name: str
    reject: Callable[[Problem, Target], str | None]
    cost: Callable[[Problem, Target], float]
    candidate: Callable[[Problem, Target], Candidate]
