"""One convolution to lower: its spec, the buffers it works on, the arithmetic that is allowed."""

from __future__ import annotations

from leanconv.gpu.arithmetic import Arithmetic
from leanconv.gpu.lowering.gemm import Epilogue
from leanconv.records import dataclass
from leanconv.spec import ConvSpec
from leanconv.types import DType


@dataclass(frozen=True)
class ConvProblem:
    """A convolution over channels-last buffers.

    Attributes:
        spec: with two spatial axes, or three.
        dtype: of all buffers, NumPy's name or bfloat16.
        arithmetics: those that may be used.
        x, y: names of buffers.
        epilogue: what happens to the sums, with its buffers' names.
        name: prefix of the buffers that are made.
        lean: whether to take what needs least memory, not what is fastest.
    """

    spec: ConvSpec
    dtype: DType
    arithmetics: tuple[Arithmetic, ...]
    x: str
    y: str
    epilogue: Epilogue
    name: str
    lean: bool = False
