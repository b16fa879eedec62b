"""Networks that are being quantised, run on samples by leanconv itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from leanconv.api.inputs import bound_by
from leanconv.api.load import load
from leanconv.api.network import Network
from leanconv.errors import ModelError, shown
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.progress import steps
from leanconv.quantizer.codes import Codes, Histogram, value_codes
from leanconv.quantizer.layers import Scheme
from leanconv.quantizer.samples import Samples

_MOST_BYTES = 256 << 20  # of values that one run gives
Known = dict[tuple[str, ...], Codes]  # codes of values that share them, by their names


def network_of(
    graph: OnnxGraph, outputs: Sequence[str] | None = None, threads: int | None = None
) -> Network:
    """The network, ready to run; `outputs` are values in place of the file's own outputs."""
    values = None if outputs is None else {name: named_value(name) for name in outputs}
    return load(graph.data(values), threads=threads)


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


def chosen_codes(
    plan: Scheme, seen: Mapping[str, Histogram], method: str, known: Known
) -> dict[str, Codes]:
    """Codes for the values of a scheme; values that share a scale have one histogram.

    Args:
        plan: the scheme.
        seen: where the numbers of values lie.
        method: of choosing ranges.
        known: codes found before, to which new ones are added.
    """
    shared: dict[str, list[str]] = {}
    for name in plan.values:
        shared.setdefault(plan.shares[name], []).append(name)
    found = {}
    for names in shared.values():
        key = tuple(sorted(names))
        if key not in known:
            histogram = seen[names[0]]
            for name in names[1:]:
                histogram = histogram.merged(seen[name])
            known[key] = value_codes(histogram, method)
        found.update(dict.fromkeys(names, known[key]))
    return found
