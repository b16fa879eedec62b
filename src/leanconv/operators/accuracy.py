"""What is required of the arithmetic of a network."""

from __future__ import annotations

import math
from dataclasses import replace

from leanconv.graph.ir import Graph
from leanconv.graph.regions import all_constants
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import DType

# The error of a network that is aimed at without a max_error, and one layer's share of it.
_NETWORK_ERROR = 1e-5  # in float32
LAYER_SHARE = 0.12


def network_error(dtype: DType) -> float:
    """The error of a network that is aimed at without a `max_error`."""
    return dtype.scaled_error(_NETWORK_ERROR)


def layer_error(max_error: float | None, dtype: DType) -> float:
    """The error accepted of one layer of a network that may err by `max_error`.

    Without a `max_error` it is a layer's share of what is aimed at. With one it is the power of two
    below it, no less than the roundoff and no more than 1. That excludes nothing that could be
    used, as a layer's error more than doubles on its way to the outputs
    (`NodeCost.passed_error`). And all `max_error` between two powers have the same choices, so that
    the least one that some plan keeps can be found.
    """
    if max_error is None:
        return network_error(dtype) * LAYER_SHARE
    return min(1.0, max(dtype.roundoff, math.ldexp(0.5, math.frexp(max_error)[1])))


@dataclass(frozen=True)
class Accuracy:
    """What is required of the arithmetic of each layer.

    Attributes:
        layer_error: relative error accepted of one layer; the default of one layer if None.
        reproducible: whether the batch must not change the bits of an image.
        weights_from_dram: whether weights come from DRAM in each run, because no cache holds those
            of the whole network.
        half: the half precision that the user asked for: products may be of factors rounded to
            it, and sums of a few products in it. None: they are float32.
    """

    layer_error: float | None = None
    reproducible: bool = False
    weights_from_dram: bool = False
    half: DType | None = None

    def of_network(self, graph: Graph, target: Target) -> Accuracy:
        """The same for a network whose constants are known: whether they come from DRAM."""
        weights = sum(array.nbytes for array in all_constants(graph))
        from_dram = weights > target.costs.l3_share * max(target.l3_bytes, target.l2_bytes)
        return replace(self, weights_from_dram=from_dram)
