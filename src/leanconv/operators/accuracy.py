"""What is required of the arithmetic of a network."""

from __future__ import annotations

from dataclasses import replace

from leanconv.graph.ir import Graph
from leanconv.records import dataclass
from leanconv.target import Target

# The error of a network that is aimed at without a max_error, and one layer's share of it.
NETWORK_ERROR = {"float32": 1e-5, "float64": 1e-5 * 2.0**-29}
LAYER_SHARE = 0.12


@dataclass(frozen=True)
class Accuracy:
    """What is required of the arithmetic of each layer.

    Attributes:
        layer_error: relative error accepted of one layer; the default of one layer if None.
        reproducible: whether the batch must not change the bits of an image.
        weights_from_dram: whether weights come from DRAM in each run, because no cache holds those
            of the whole network.
    """

    layer_error: float | None = None
    reproducible: bool = False
    weights_from_dram: bool = False

    def of_network(self, graph: Graph, target: Target) -> Accuracy:
        """The same for a network whose constants are known: whether they come from DRAM."""
        weights = sum(array.nbytes for array in graph.constants.values())
        from_dram = weights > target.costs.l3_share * max(target.l3_bytes, target.l2_bytes)
        return replace(self, weights_from_dram=from_dram)
