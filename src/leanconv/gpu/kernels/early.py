"""A kernel that starts while the one before it still runs (programmatic dependent launch, sm_90).

Its programs take their places and wait; what the launch of a kernel costs is over by the time they
may read. Without it the next of a row of small kernels starts a microsecond later.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait until the kernel before this one has written everything; then let the next one start.

    It must stand in front of the first access to memory. EARLY: whether the launcher asks for it.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
