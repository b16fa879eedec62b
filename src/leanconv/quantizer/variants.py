"""A network with any of its layers quantised, from codes that samples decide once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import copy

import numpy as np

from leanconv.api.inputs import bound_by
from leanconv.errors import ModelError, shown
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.onnx_import import read_model
from leanconv.progress import steps
from leanconv.quantizer import emit
from leanconv.quantizer.codes import (
    WIDE_HIGH,
    Codes,
    Histogram,
    WeightCodes,
    codes_of_range,
    value_codes,
)
from leanconv.quantizer.equalise import equalised
from leanconv.quantizer.float_network import network_of
from leanconv.quantizer.layers import Layer, Scheme, quantisable, scheme
from leanconv.quantizer.result import FLOAT16, FLOAT32, INT8, W8A16, Rungs, named
from leanconv.quantizer.rounding import corrected_bias, layer_codes, moments, rounded_codes
from leanconv.quantizer.samples import Samples
from leanconv.quantizer.saturating import Saturating, can_saturate
from leanconv.records import dataclass, replace

_LARGEST = 16384.0  # of what a layer of float16 reads: a quarter of the range
_MOST_BYTES = 256 << 20  # of values that one run gives


@dataclass(frozen=True)
class Methods:
    """Options of the search for codes.

    Attributes:
        ranges: of values, a key of `codes.METHODS`.
        equalise: whether channels are made alike first.
        rounding: whether weights are rounded with a view to their layer's output.
        correct_bias: whether the means of output channels are kept.
        safe: whether weights are such that no engine's sums saturate: see `saturating`.
    """

    ranges: str = "mse"
    equalise: bool = True
    rounding: bool = True
    correct_bias: bool = True
    safe: bool = True


class Variants:
    """Codes of a network, and files with layers in chosen precisions.

    Args:
        graph: in float32, folded, opset 13 or later.
        samples: to calibrate on.
        methods: of finding codes.
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
        self._known: dict[tuple[str, ...], Codes] = {}  # by the values that share them
        codes = self._codes(whole)
        wanted = methods.rounding or methods.correct_bias
        self._moments = moments(self.graph, self.layers, codes, samples, threads) if wanted else {}
        self._set_weights(codes)

    def _set_weights(self, codes: Mapping[str, Codes]) -> None:
        self._weights: dict[str, WeightCodes] = {}
        self._biased: dict[str, Layer] = {}
        for name, layer in steps("rounding weights", self.layers.items(), len(self.layers)):
            self._weights[name], self._biased[name] = self._layer(layer, codes)

    def of_all_bits(self) -> Variants:
        """Return the same network with weights of all 8 bits: sums may saturate elsewhere."""
        found = copy(self)
        found._methods = replace(self._methods, safe=False)
        found._set_weights(self._codes(scheme(self.graph, set(self.layers))))
        return found

    def _codes(self, plan: Scheme) -> dict[str, Codes]:
        """Codes for the values of a scheme; values that share a scale have one histogram."""
        shared: dict[str, list[str]] = {}
        for name in plan.values:
            shared.setdefault(plan.shares[name], []).append(name)
        found = {}
        for names in shared.values():
            key = tuple(sorted(names))
            if key not in self._known:
                histogram = self._seen[names[0]]
                for name in names[1:]:
                    histogram = histogram.merged(self._seen[name])
                self._known[key] = value_codes(histogram, self._methods.ranges)
            found.update(dict.fromkeys(names, self._known[key]))
        return found

    def _layer(self, layer: Layer, codes: Mapping[str, Codes]) -> tuple[WeightCodes, Layer]:
        order = layer.neighbours() if self._methods.safe else None
        made = layer_codes(layer, codes, self._methods.ranges != "min-max", order)
        seen = self._moments.get(layer.name)
        if seen is None:
            return made, layer
        if self._methods.rounding:
            made = rounded_codes(layer, made.scales, seen.products, order)
        if self._methods.correct_bias and layer.takes_bias:
            return made, replace(layer, bias=corrected_bias(layer, made, seen))
        return made, layer

    def offers(self, name: str, rung: str) -> bool:
        """Return whether a layer can have a precision."""
        if rung != FLOAT16:
            return True
        layer, seen = self.layers[name], self._seen[self.layers[name].node.inputs[0]]
        held = [layer.weights] if layer.bias is None else [layer.weights, layer.bias]
        return max(-seen.low, seen.high) < _LARGEST and all(map(emit.fits_halves, held))

    def counts(self, rungs: Rungs) -> dict[str, int]:
        """Return the number of layers in each precision that occurs."""
        return dict(Counter(rungs.get(name, FLOAT32) for name in self.layers))

    def _bias(self, name: str, rung: str) -> np.ndarray | None:
        """A layer's bias in a precision; 16-bit inputs have the means of float32."""
        layer, seen = self._biased[name], self._moments.get(name)
        if rung == INT8 or layer.bias is None or layer.bias is self.layers[name].bias:
            return layer.bias
        assert seen is not None, "the bias was corrected"
        exact = replace(seen, rounded_mean=seen.mean)
        return corrected_bias(self.layers[name], self._weights[name], exact)

    def _made(self, rungs: Rungs, form: emit.Form) -> OnnxGraph:
        graph = self.graph.copy()
        chosen = named(rungs, INT8, W8A16)
        coded = {name: rungs[name] for name in self.layers if name in chosen}  # in order
        layers = quantisable(graph)
        for name, rung in coded.items():
            bias = self._bias(name, rung)
            layer = layers[name]
            if bias is not None and bias is not layer.bias:
                graph.change(layer.node, inputs=layer.inputs(graph, None, bias))
        plan = scheme(graph, named(rungs, INT8))
        weights = {name: self._weights[name] for name in coded}
        halves = named(rungs, FLOAT16)
        apart = named(rungs, W8A16) | halves
        made = emit.with_codes(graph, plan, self._codes(plan), weights, form, apart)
        wide = {name: layers[name] for name in named(rungs, W8A16)}
        return emit.with_halves(emit.with_wide_codes(made, wide, self._wide(wide), weights), halves)

    def _wide(self, layers: Mapping[str, Layer]) -> dict[str, Codes]:
        """Codes of 16 bits for the inputs of layers: they cover all numbers."""
        names = {layer.node.inputs[0] for layer in layers.values()}
        found = {name: self._seen[name] for name in names}
        return {n: codes_of_range(seen.low, seen.high, WIDE_HIGH) for n, seen in found.items()}

    def saturates(self, rungs: Rungs) -> bool:
        """Return whether sums of engines can saturate on CPUs without VNNI."""
        chosen = named(rungs, INT8)
        return any(can_saturate(self.layers[name], self._weights[name]) for name in chosen)

    def saturating(self, rungs: Rungs) -> Saturating:
        """Return the file as engines compute it whose sums saturate."""
        chosen = {name: self.layers[name] for name in named(rungs, INT8)}
        values = self._codes(scheme(self.graph, set(chosen)))
        model = read_model(self.file(rungs).data())
        return Saturating(model, chosen, self._weights, values)

    def switched(self) -> tuple[OnnxGraph, emit.Switches]:
        """Return a network of which each layer can be switched to int8."""
        plan = scheme(self.graph, set(self.layers))
        biases = {name: self._bias(name, INT8) for name in self.layers}
        return emit.switched(self.graph, plan, self._codes(plan), self._weights, biases)

    def settings(self, switches: emit.Switches, rungs: Rungs) -> dict[str, np.ndarray]:
        """Return the inputs of such a network for a choice of layers in int8."""
        chosen = named(rungs, INT8)
        largest = {name: max(-seen.low, seen.high) for name, seen in self._seen.items()}
        return switches.set(self._codes(scheme(self.graph, chosen)), chosen, largest)

    def file(self, rungs: Rungs) -> OnnxGraph:
        """Return the network with layers in these precisions."""
        return self._made(rungs, emit.Linear())

    def like(self, rungs: Rungs) -> OnnxGraph:
        """Return the same network with the numbers of 8-bit codes as floats."""
        return self._made(rungs, emit.Rounded())


def observed(
    graph: OnnxGraph, names: Collection[str], samples: Samples, threads: int | None
) -> dict[str, Histogram]:
    """Return histograms of the numbers of some values.

    Args:
        graph: in float32.
        names: of inputs and of values between nodes.
        samples: on which it is run.
        threads: as `load` takes them.

    Raises:
        ModelError: a value is not finite on a sample.
    """
    found = {name: Histogram() for name in names}
    given = [name for name in names if name in graph.inputs]
    inner = [name for name in names if name not in graph.inputs]
    for part in _parts(graph, inner, samples, threads):
        network = network_of(graph, part, threads)
        for sample in steps("calibrating", samples, len(samples)):
            for name, values in network.run(sample).items():
                found[name].add(values)
    for sample in steps("calibrating inputs", samples, len(samples)) if given else ():
        for name in given:
            found[name].add(sample[name])
    for name, histogram in found.items():
        if histogram.unsound:
            raise ModelError(
                f"value {shown(name)!r} has NaN or infinite numbers on the samples; expected "
                "finite ones: look whether the samples are as the network expects them"
            )
    return found


def _parts(
    graph: OnnxGraph, names: Sequence[str], samples: Samples, threads: int | None
) -> list[list[str]]:
    """The values in groups, so that one run does not give too many bytes."""
    if not names:
        return []
    network = network_of(graph, names, threads)
    sample = next(iter(samples))
    plan = network.bind(bound_by(network.inputs, sample))
    parts: list[list[str]] = [[]]
    held = 0
    for name in names:
        kind = plan.outputs[name]
        size = _MOST_BYTES if kind is None else kind.bytes  # unknown: nothing beside it
        if parts[-1] and held + size > _MOST_BYTES:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += size
    return parts
