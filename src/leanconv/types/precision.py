"""In which element types a convolution is computed."""

from __future__ import annotations

from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.types.dtype import FLOAT32, FLOAT64, DType, as_dtype


@dataclass(frozen=True)
class Precision:
    """The element types of a sum of products; written as one name where all are alike.

    Attributes:
        x: of the input.
        w: of the weights.
        accumulate: of the sums, of the bias, and of what the epilogue computes.
        y: of the output and of a residual.
    """

    x: DType
    w: DType
    accumulate: DType
    y: DType

    @staticmethod
    def of(given: object) -> Precision:
        """A precision as it is; of one type, or its name: that type for everything.

        Raises:
            SpecError: there is no type of that name.
        """
        if isinstance(given, Precision):
            return given
        kind = as_dtype(given)
        return _UNIFORM.get(kind) or Precision(kind, kind, kind, kind)

    @property
    def is_uniform(self) -> bool:
        """Whether one type is that of everything."""
        return self.x == self.w == self.accumulate == self.y

    @property
    def dtype(self) -> DType:
        """The one type of everything.

        Raises:
            SpecError: operands have types of their own.
        """
        if not self.is_uniform:
            raise SpecError(f"the precision is {self}; expected one dtype for everything")
        return self.x

    def __str__(self) -> str:
        if self.is_uniform:
            return str(self.x)
        return f"{self.x}*{self.w}+{self.accumulate}->{self.y}"


SINGLE = Precision(FLOAT32, FLOAT32, FLOAT32, FLOAT32)
DOUBLE = Precision(FLOAT64, FLOAT64, FLOAT64, FLOAT64)
_UNIFORM = {each.x: each for each in (SINGLE, DOUBLE)}
