"""`leanconv.quantize`: from a float32 network and samples to a file of integers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import bound_by
from leanconv.api.load import load
from leanconv.api.network import Network
from leanconv.api.options import checked_flag, checked_limit, checked_threads, model_source
from leanconv.errors import ModelError, SpecError, UnsupportedError, memory_reported, short
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.progress import Progress, checked_progress, working
from leanconv.quantizer.choose import Choice, Chooser
from leanconv.quantizer.codes import checked_method
from leanconv.quantizer.float_network import folded, network_of, raised, read_graph
from leanconv.quantizer.layers import quantisable, rule_of
from leanconv.quantizer.result import FLOAT32, INT8, RUNS_ON, LayerReport, Quantized, Trial, all_in
from leanconv.quantizer.samples import Samples, checked_samples, read_once
from leanconv.quantizer.scores import Metric, score_of
from leanconv.quantizer.trial import Trials
from leanconv.quantizer.variants import Methods, Variants
from leanconv.units import counted, format_ns

log = logging.getLogger(__name__)

_FEW = 20  # samples, of which a score says little


@memory_reported("quantising a network")
def quantize(
    model: str | os.PathLike[str] | bytes | Any,
    samples: Any,
    *,
    ranges: str = "mse",
    equalize: bool = True,
    rounding: bool = True,
    correct_bias: bool = True,
    max_accuracy_drop: float | None = None,
    runs_on: str = "any",
    memory_limit: int | str | None = None,
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
        max_accuracy_drop: by how many percent the score may be below that of float32. Each layer
            is then int8, float16, float32, or of int8 weights with 16-bit inputs: the fastest
            choice by times that plans predict that keeps the score on the samples that were
            calibrated on; the others verify. All layers in one precision are among the choices.
            Without it all layers are int8.
        runs_on: `"any"`: other engines answer the same on every CPU. On x86 CPUs without VNNI they
            add two products in 16 bits, which may saturate; weights beside each other are kept
            within what cannot. `"vnni"`: weights of all 8 bits, for CPUs that have it, and for
            leanconv, whose sums are exact everywhere; what others answer is reported.
        memory_limit: bytes, or text such as `"12 MiB"`, within which `leanconv.load` must plan the
            file, weights and arena together, for the first sample's sizes. Layers are chosen
            within it.
        labels: the right class of each image; the score is the accuracy.
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
        BudgetError: the file made needs more than `memory_limit`; it names the least that works.
        SpecError: an option makes no sense.
    """
    methods = Methods(
        checked_method(ranges),
        checked_flag("equalize", equalize),
        checked_flag("rounding", rounding),
        checked_flag("correct_bias", correct_bias),
        _checked_cpus(runs_on) == "any",
    )
    limit = checked_limit(memory_limit)
    threads, allowed = checked_threads(threads), _checked_drop(max_accuracy_drop)
    source = model_source(model)
    shown = source.name if isinstance(source, Path) else f"a model of {len(source)} bytes"
    with working(f"quantising {shown}", checked_progress(progress)):
        original = read_graph(source).pruned()
        _refuse_quantised(original)
        network = network_of(original, threads=threads)
        given = checked_samples(samples, network.inputs)
        read_once(given)
        network.run(given.first())  # what does not fit is refused here, by its names
        graph = folded(raised(original, _ranks(original, given, threads)))
        if not quantisable(graph):
            raise UnsupportedError(
                "the network has no Conv, Gemm or MatMul with constant float32 weights; expected "
                "at least one: nothing can be quantised"
            )
        variants = Variants(graph, given.half(0), methods, threads)
        rows = None if labels is None else [_images(sample) for sample in given]
        score = score_of(graph, metric, labels, rows)
        trials = Trials(original, variants, given, score, threads)
        choice = Choice(all_in(variants.layers), {}, {})
        if allowed is not None:
            choice = Chooser(variants, trials, given, allowed, limit, threads).choose()
        held_out = given.numbers(1)
        last, times = trials.last(choice.rungs, held_out)
        elsewhere = trials.elsewhere(choice.rungs, held_out)
        all_bits = None
        if methods.safe and last.drop > 0 and INT8 in choice.rungs.values():
            all_bits = trials.of_all_bits(choice.rungs, held_out)
        data = variants.file(choice.rungs).data()
        if limit is not None:
            bound = load(data, threads=threads, memory_limit=limit)
            bound.bind(bound_by(bound.inputs, given.first()))
        result = Quantized(
            data=data,
            score_name=score.name,
            score=last.score,
            float_score=last.float_score,
            error=last.error,
            layers=tuple(
                LayerReport(
                    name,
                    layer.node.op,
                    layer.weights.size,
                    choice.rungs.get(name, FLOAT32),
                    choice.sensitivities.get(name),
                    times.get(name),
                    choice.gains.get(name),
                )
                for name, layer in variants.layers.items()
            ),
            samples=(len(given.half(0)), len(given.half(1))),
            trials=tuple(trials.done),
            time_ns=last.time_ns,
            float_ns=trials.float_ns,
            runs_on="vnni" if variants.saturates(choice.rungs) else "any",
            elsewhere=elsewhere,
            warnings=(),
        )
        warnings = tuple(_warnings(result, all_bits, _image_count(given, network), trials.classes))
        for warning in warnings:
            log.warning("%s: %s", shown, warning)
        return replace(result, warnings=warnings)


def _warnings(
    made: Quantized, all_bits: Trial | None, images: int, classes: Collection[int]
) -> Iterator[str]:
    if images < _FEW:
        yield (
            f"the score is of {counted(images, 'sample')}, half of which calibrated: give some "
            "tens, as they will come"
        )
    if len(classes) == 1:
        yield (
            "all samples have one class, so that the score is easy to keep: give samples of several"
        )
    if made.time_ns is not None and made.time_ns > made.float_ns:
        yield (
            f"the file is slower than float32 here: {format_ns(made.time_ns)} a run, float32 "
            f"{format_ns(made.float_ns)}"
        )
    if made.runs_on == "vnni":
        found = (
            ""
            if made.elsewhere is None
            else (
                f", {made.score_name} {made.elsewhere.score:.2%} and an error of "
                f"{made.elsewhere.error:.2e} on {counted(made.elsewhere.count, 'sample')}"
            )
        )
        yield (
            "sums of other engines saturate on x86 CPUs with AVX2 and without VNNI"
            f"{found}: runs_on='any' keeps weights within what cannot"
        )
    if all_bits is not None and all_bits.score > made.score:
        yield (
            f"with weights of all 8 bits the {made.score_name} is {all_bits.score:.2%}, with ones "
            f"that saturate on no CPU {made.score:.2%}: runs_on='vnni' (--for vnni) keeps 8 bits, "
            "where every CPU has VNNI or leanconv runs the file"
        )


def _image_count(samples: Samples, network: Network) -> int:
    """Return the number of images: rows of samples whose first axis is open, else samples."""
    shape = network.inputs[0].shape
    if not shape or isinstance(shape[0], int):
        return len(samples)
    return sum(map(_images, samples))


def _checked_cpus(runs_on: Any) -> str:
    if runs_on not in RUNS_ON:
        raise SpecError(f"runs_on is {short(runs_on)}; expected 'any' or 'vnni'")
    return str(runs_on)


def _checked_drop(drop: Any) -> float | None:
    if drop is None:
        return None
    sound = isinstance(drop, int | float) and not isinstance(drop, bool) and 0 <= drop <= 100
    if not sound:
        raise SpecError(
            f"max_accuracy_drop is {short(drop)}; expected percent from 0 to 100, such as 0.5"
        )
    return float(drop) / 100.0


def _refuse_quantised(graph: OnnxGraph) -> None:
    found = next((node for node in graph.nodes if rule_of(node).quantised), None)
    if found is not None:
        raise ModelError(
            f"the network is quantised already: it has {found.bare_op} nodes; expected one in "
            "float32"
        )


def _ranks(original: OnnxGraph, samples: Samples, threads: int | None) -> Callable[[str], int]:
    def rank_of(name: str) -> int:
        sample = samples.first()
        if name in sample:
            return sample[name].ndim
        return network_of(original, [name], threads).run(sample)[name].ndim

    return rank_of


def _images(sample: Mapping[str, np.ndarray]) -> int:
    first = next(iter(sample.values()))
    return len(first) if first.ndim else 1
