"""How products are computed on the device, and what each way costs in accuracy and time.

| name | products | peak of an H200 | error of a sum |
|---|---|---|---|
| ieee | float32 or float64 fused multiply-adds | 67 TFLOP/s (float64 tensor cores too) | as NumPy |
| fp16x3 | three float16 products of two halves each, sums promoted every 128 | 330 | as float32 |
| tf32x3 | three tf32 products, sums promoted every 128 | 165 | as float32, any range |
| tf32 | one tf32 product | 495 | 1e-3 |
| native | one product of float16 or bfloat16 arrays, summed in float32 | 989 | of the inputs |

fp16x3 is as accurate as float32 while a tile's inputs lie between 2^-8 and 1023; tiles that leave
that range are detected and recomputed with tf32x3.
"""

from __future__ import annotations

from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType


@dataclass(frozen=True)
class Arithmetic:
    """One way to compute products.

    Attributes:
        name: what the plan shows.
        mode: `MODE` of `kernels.gemm.multiply`.
        unit_error: relative error of one product and its addition, for random signs.
        split: whether weights are kept as two float16 halves.
    """

    name: str
    mode: str
    unit_error: float
    split: bool = False


IEEE = Arithmetic("ieee", "ieee", FLOAT32.roundoff)
TF32 = Arithmetic("tf32", "tf32", 2.0**-10)
TF32X3 = Arithmetic("tf32x3", "tf32x3", 2.0**-20, split=True)
FP16X3 = Arithmetic("fp16x3", "fp16x3", 2.0**-21, split=True)
HALF = Arithmetic("native", "native", 2.0**-11)
BRAIN = Arithmetic("native", "native", 2.0**-8)
DOUBLE = Arithmetic("ieee", "native", FLOAT64.roundoff)

# What may be used for arrays of a dtype, by the precision that the user asks for.
_CHOICES: dict[str, dict[str | None, tuple[Arithmetic, ...]]] = {
    FLOAT32: {
        None: (FP16X3, TF32X3, IEEE),
        FLOAT32: (FP16X3, TF32X3, IEEE),
        "ieee": (IEEE,),
        "fp16x3": (FP16X3,),
        "tf32x3": (TF32X3,),
        "tf32": (TF32,),
    },
    FLOAT64: {None: (DOUBLE,), FLOAT64: (DOUBLE,), "ieee": (DOUBLE,)},
    FLOAT16: {None: (HALF,), FLOAT16: (HALF,)},
    BFLOAT16: {None: (BRAIN,), BFLOAT16: (BRAIN,)},
}


def choices(dtype: DType, precision: str | None) -> tuple[Arithmetic, ...]:
    """The ways to make products for arrays of a dtype that keep what the user asks for.

    Raises:
        SpecError: the dtype has no such precision; a lower one is never taken instead.
    """
    known = _CHOICES[dtype]
    if precision not in known:
        raise SpecError(
            f"precision is {precision!r} for {dtype} arrays; expected one of "
            f"{', '.join(repr(name) for name in known if name)}, or None"
        )
    return known[precision]
