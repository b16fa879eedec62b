"""`leanconv.quantize`: from a float32 network and samples to a file of integers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.load import model_source
from leanconv.api.options import checked_flag, checked_threads
from leanconv.errors import ModelError, UnsupportedError, memory_reported
from leanconv.progress import Progress, checked_progress, steps, working
from leanconv.quantizer.folding import folded
from leanconv.quantizer.onnx_graph import OnnxGraph, read_graph
from leanconv.quantizer.opsets import raised
from leanconv.quantizer.ranges import checked_method
from leanconv.quantizer.result import LayerReport, Quantized
from leanconv.quantizer.running import network_of
from leanconv.quantizer.samples import Samples, checked_samples
from leanconv.quantizer.scheme import quantisable
from leanconv.quantizer.scores import Metric, output_error, score_of
from leanconv.quantizer.variants import Methods, Variants

_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger")


@memory_reported("quantising a network")
def quantize(
    model: str | os.PathLike[str] | bytes | Any,
    samples: Any,
    *,
    ranges: str = "mse",
    equalize: bool = True,
    rounding: bool = True,
    correct_bias: bool = True,
    labels: Any = None,
    metric: Metric | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Make a network of 8-bit integers from one in float32.

    Convolutions and products with constant weights are computed on codes: weights int8 with a scale
    for each output channel, what is between layers uint8. Every other sample is used to find where
    the numbers between layers lie, the others to verify.

    Args:
        model: a file's path, its bytes, or an `onnx.ModelProto`, of opset 11 or later.
        samples: inputs as they will come, some tens at least: an array, arrays by the inputs'
            names, the path of a .npy or .npz file or of a folder of them, or an iterable of these.
            Files are read one at a time. A single array whose first axis the network leaves open is
            taken apart into images.
        ranges: how the range of a value's codes is chosen: `"mse"` (least squared error),
            `"min-max"`, `"percentile"` or `"entropy"`.
        equalize: make channels alike that share a scale, where weights or a factor for each
            channel can take up the difference.
        rounding: round weights so that their layer's output errs least on the samples; else each
            to the nearest code.
        correct_bias: keep the mean of each output channel.
        labels: the right class of each image; the accuracy is reported.
        metric: a function of (outputs, outputs in float32, inputs), each arrays by name, that gives
            a score of a sample; larger is better. Without it and `labels` the score is the
            agreement with float32: of classes how often the same one is the largest, of
            probabilities the intersection over union, of other numbers 1 - |y - y32| / |y32|.
        threads: that take part in runs of the network; by default those that may be used.
        progress: a function of (stage, done, total), as `load` takes it.

    Returns:
        The file (`quantized.data`, `quantized.save(path)`), and what was measured.

    Raises:
        InputError: the file or a sample cannot be read or does not fit.
        ModelError: the file is damaged, or gives numbers that are not finite.
        UnsupportedError: the network cannot be quantised.
        SpecError: an option makes no sense.
    """
    methods = Methods(
        checked_method(ranges),
        checked_flag("equalize", equalize),
        checked_flag("rounding", rounding),
        checked_flag("correct_bias", correct_bias),
    )
    threads = checked_threads(threads)
    source = model_source(model)
    shown = source.name if isinstance(source, Path) else f"a model of {len(source)} bytes"
    with working(f"quantising {shown}", checked_progress(progress)):
        original = read_graph(source)
        _refuse_quantised(original)
        inputs = network_of(original, threads=threads).inputs
        given = checked_samples(samples, inputs)
        graph = folded(raised(original, _ranks(original, given, threads)))
        if not quantisable(graph):
            raise UnsupportedError(
                "the network has no Conv, Gemm or MatMul with constant float32 weights; expected "
                "at least one: nothing can be quantised"
            )
        variants = Variants(graph, given.half(0), methods, threads)
        layers = variants.layers
        made, like = variants.file(set(layers)), variants.like(set(layers))
        rows = None if labels is None else [_images(sample) for sample in given]
        score = score_of(graph, metric, labels, rows)
        verified = _verified(original, like, given, score.of, threads)
        return Quantized(
            data=made.data(),
            score_name=score.name,
            layers=tuple(LayerReport.of(layer, True) for layer in layers.values()),
            samples=(len(given.half(0)), len(given.half(1))),
            **verified,
        )


def _refuse_quantised(graph: OnnxGraph) -> None:
    found = next((node for node in graph.nodes if node.op in _QUANTISED), None)
    if found is not None:
        raise ModelError(
            f"the network is quantised already: it has {found.op} nodes; expected one in float32"
        )


def _ranks(original: OnnxGraph, samples: Samples, threads: int | None) -> Callable[[str], int]:
    """What tells how many axes a value has, by a run."""

    def rank_of(name: str) -> int:
        sample = next(iter(samples))
        if name in sample:
            return sample[name].ndim
        return network_of(original, [name], threads).run(sample)[name].ndim

    return rank_of


def _images(sample: Mapping[str, np.ndarray]) -> int:
    first = next(iter(sample.values()))
    return len(first) if first.ndim else 1


def _verified(
    original: OnnxGraph,
    made: OnnxGraph,
    samples: Samples,
    score: Callable[..., float],
    threads: int | None,
) -> dict[str, float]:
    """Scores and error on the samples that were not calibrated on."""
    held_out = samples.half(1)
    floats, codes = network_of(original, threads=threads), network_of(made, threads=threads)
    numbers = samples.numbers(1)
    scores, scores32, errors = [], [], []
    for number, sample in zip(numbers, steps("verifying", held_out, len(held_out)), strict=True):
        exact, found = floats.run(sample), codes.run(sample)
        scores32.append(score(number, exact, exact, sample))
        scores.append(score(number, found, exact, sample))
        errors.append(output_error(found, exact))
    return {
        "score": float(np.mean(scores)),
        "float_score": float(np.mean(scores32)),
        "error": float(np.sqrt(np.mean(np.square(errors)))),
    }
