"""Compiled packing of Winograd's weights: U = G g G^T in float64, rounded, in panels.

    packed[group][panel][offset of a point][place of step and point][lane] = sum over taps of
        matrix[tap][point] * w[group][output of panel and lane][source of step and tap]

Where a point of a step is stored, if it is, is a table: one code transforms the weights of all
tiles, strides and channels, for fused kernels and for stages, whose points are apart. Bytes become
int16, exactly; two steps that one dot product multiplies lie side by side in a lane.
"""

from __future__ import annotations

from leanconv.algorithms.common.weight_transform import WeightTransform
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.records import dataclass

POINTS = 4  # computed together; tables have a multiple of them


@dataclass(frozen=True, kw_only=True)
class WeightPoints(WeightTransform):
    """The points of all taps.

    Attributes:
        points: of the transform, those included that fill up `POINTS`.
    """

    points: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights; matrix (taps, points) in float64; i64 tables; result.

        The tables are (steps, taps), which of a row's weights it is, and (steps, points), where it
        is stored, counted in vectors of the panel's width, both -1 where there is none; and the
        offsets of points in elements.
        """
        return ("w", "matrix", "sources", "places", "offsets", "packed")

    @property
    def types(self) -> dict[str, str]:
        return {"w": self.given.llvm, "matrix": "double", "packed": self.dtype.llvm}

    def transform(
        self,
        e: Function,
        pointers: dict[str, Pointer],
        step: Value,
        result: Pointer,
        width: Value,
        output: Value,
    ) -> None:
        """Compute and store all points."""
        del output
        lanes, together, places = self.lanes, self.together, pointers["places"]
        doubles = vector("double", lanes)
        gathered = [self.gathered(e, number) for number in range(together)]
        with e.loop("point", self.points, step=POINTS) as point:
            sums = [e.zero(doubles) for _ in range(POINTS * together)]
            with e.loop("tap", self.taps, carry=[sums]) as tap:
                weights = [e.load(taps.at(tap * lanes), doubles) for taps in gathered]
                factors = pointers["matrix"].at(tap * self.points + point)
                for i in range(POINTS):
                    factor = e.broadcast(factors.at(i), doubles)
                    for j, weight in enumerate(weights, i * together):
                        sums[j] = e.fma(factor, weight, sums[j])
            for i in range(POINTS):
                totals = sums[i * together : (i + 1) * together]
                place = e.load_index(places.at(step * self.points + (point + i)))
                with e.when(place.compare("sge", 0)):
                    offset = e.load_index(pointers["offsets"].at(point + i)) + place * width
                    e.store(self.rounded(e, totals), result.at(offset))
