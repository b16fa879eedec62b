"""A network with any of its layers quantised: what is found on samples once, and put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from leanconv.quantizer.codes import Codes, WeightCodes
from leanconv.quantizer.emit import quantised, rounded
from leanconv.quantizer.equalise import equalised
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import OnnxGraph
from leanconv.quantizer.rounding import corrected_bias, moments, rounded_codes
from leanconv.quantizer.running import Known, chosen_codes, observed
from leanconv.quantizer.samples import Samples
from leanconv.quantizer.scheme import Scheme, quantisable, scheme
from leanconv.quantizer.weights import layer_codes
from leanconv.records import dataclass


@dataclass(frozen=True)
class Methods:
    """How codes are found.

    Attributes:
        ranges: of values, a key of `ranges.METHODS`.
        equalise: whether channels are made alike first.
        rounding: whether weights are rounded with a view to their layer's output.
        correct_bias: whether the means of output channels are kept.
    """

    ranges: str = "mse"
    equalise: bool = True
    rounding: bool = True
    correct_bias: bool = True


class Variants:
    """What is known of a network's codes.

    Args:
        graph: in float32, folded, opset 13 or later.
        samples: to calibrate on.
        methods: how codes are found.
        threads: of runs.

    Attributes:
        graph: in float32, with channels made alike.
        layers: those that can be quantised, by name.
    """

    def __init__(
        self, graph: OnnxGraph, samples: Samples, methods: Methods, threads: int | None
    ) -> None:
        self.graph = equalised(graph, samples, threads) if methods.equalise else graph
        self.layers = quantisable(self.graph)
        self._methods = methods
        whole = scheme(self.graph, set(self.layers))
        self._seen = observed(self.graph, whole.values, samples, threads)
        self._known: Known = {}
        codes = chosen_codes(whole, self._seen, methods.ranges, self._known)
        self._weights: dict[str, WeightCodes] = {}
        self._biased: dict[str, Layer] = {}
        wanted = methods.rounding or methods.correct_bias
        self._moments = moments(self.graph, self.layers, codes, samples, threads) if wanted else {}
        for name, layer in self.layers.items():
            self._weights[name], self._biased[name] = self._layer(layer, codes)

    def _layer(self, layer: Layer, codes: Mapping[str, Codes]) -> tuple[WeightCodes, Layer]:
        """A layer's codes, and the layer with its bias corrected."""
        made = layer_codes(layer, codes, least_error=self._methods.ranges != "min-max")
        seen = self._moments.get(layer.name)
        if seen is None:
            return made, layer
        if self._methods.rounding:
            made = rounded_codes(layer, made.scales, seen.products)
        if self._methods.correct_bias and layer.takes_bias:
            return made, replace(layer, bias=corrected_bias(layer, made, seen))
        return made, layer

    def _parts(
        self, chosen: Collection[str]
    ) -> tuple[OnnxGraph, Scheme, dict[str, Codes], dict[str, WeightCodes]]:
        graph = self.graph.copy()
        plan = scheme(graph, chosen)
        values = chosen_codes(plan, self._seen, self._methods.ranges, self._known)
        layers = {}
        for name, layer in plan.layers.items():
            bias = self._biased[name].bias
            if bias is not None and bias is not layer.bias:
                layer.set_bias(graph, bias)
            layers[name] = replace(layer, bias=bias)
        weights = {name: self._weights[name] for name in layers}
        return graph, replace(plan, layers=layers), values, weights

    def file(self, chosen: Collection[str]) -> OnnxGraph:
        """The network with the layers of these names quantised."""
        return quantised(*self._parts(chosen))

    def like(self, chosen: Collection[str]) -> OnnxGraph:
        """The same numbers as floats."""
        return rounded(*self._parts(chosen))
