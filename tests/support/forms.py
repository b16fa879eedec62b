"""Forms of kernels: whether several share one, and code with constants to compare them with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from leanconv.codegen.forms import Form, emitted, forms_of_skeleton, instance_of
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.target import Target
from support.kernel_runner import run_kernel


def constant(kernel: Kernel) -> Kernel:
    """The same kernel with its extents as constants in its code."""
    kind = type(kernel)
    made: Kernel = object.__new__(type("Constant" + kind.__name__, (kind,), {"VARIES": False}))
    made.__dict__.update(kernel.__dict__)
    return made


def form_of(kernel: Kernel, target: Target) -> Form:
    """The form that serves a kernel; it is emitted if this process knows none."""
    digest = instance_of(kernel, target).digest
    return next(f for f in forms_of_skeleton(kernel, target) if f.digest == digest)


def shared(kernels: Iterable[Kernel]) -> bool:
    """Whether all these kernels have one form."""
    return len({instance_of(kernel, host()).digest for kernel in kernels}) == 1


def texts(kernels: Iterable[Kernel], target: Target) -> int:
    """The number of forms that these kernels have for a target."""
    return len({emitted(kernel, target)[0] for kernel in kernels})


def same_bits(kernel: Kernel, *arrays: np.ndarray) -> None:
    """The form computes what the code with constants does."""
    np.testing.assert_array_equal(
        run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)
    )
