"""Layers in any of the precisions: valid files, onnxruntime's answers those of our own run."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import leanconv as lc
from leanconv.api.options import model_source
from leanconv.cli.quantize_page import layer_counts, notes, quantize_page
from leanconv.quantizer.float_network import folded, read_graph
from leanconv.quantizer.result import (
    FLOAT16,
    FLOAT32,
    INT8,
    RUNGS,
    W8A16,
    LayerReport,
    Quantized,
    Rungs,
    Trial,
    all_in,
)
from leanconv.quantizer.samples import checked_samples
from leanconv.quantizer.variants import Methods, Variants
from support.networks_to_quantise import random_network

_LIKE_FLOAT32 = {INT8: 0.25, W8A16: 0.02, FLOAT16: 0.01}


def variants(data: bytes, samples: np.ndarray) -> Variants:
    given = checked_samples(samples, lc.load(data, threads=1).inputs)
    return Variants(folded(read_graph(model_source(data))), given, Methods(), 1)


def judged(data: bytes, x: np.ndarray) -> np.ndarray:
    """What onnxruntime gives; its further optimisations take 16-bit inputs of products as int8."""
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("seed", range(4))
def test_files_of_any_precisions(seed: int) -> None:
    data, x = random_network(seed)
    made = variants(data, x)
    exact = lc.load(data, threads=1)(x)
    names = list(made.layers)
    random = np.random.default_rng(seed)
    choices: list[Rungs] = [all_in(names, rung) for rung in (W8A16, FLOAT16)]
    choices += [{name: str(random.choice(RUNGS)) for name in names} for _ in range(2)]
    for rungs in choices:
        file = made.file(rungs).data()
        found = judged(file, x)
        ours = lc.load(file, threads=1)(x)
        used = set(rungs.values())
        assert relative(found, exact) < max(_LIKE_FLOAT32.get(rung, 0.0) for rung in used), rungs
        assert relative(ours, found) < (0.03 if INT8 in used else 0.005), rungs


def test_what_is_in_the_file() -> None:
    data, x = random_network(1)
    made = variants(data, x)
    names = list(made.layers)
    halves = onnx.load_from_string(made.file(all_in(names, FLOAT16)).data())
    kinds = {each.data_type for each in halves.graph.initializer}
    assert onnx.TensorProto.FLOAT not in kinds
    wide = onnx.load_from_string(made.file(all_in(names, W8A16)).data())
    assert {"", "com.microsoft"} <= {each.domain for each in wide.opset_import}
    assert {"uint16", "int8"} <= {
        str(onnx.helper.tensor_dtype_to_np_dtype(each.data_type)) for each in wide.graph.initializer
    }
    assert sum(made.counts({names[0]: FLOAT16}).values()) == len(names)


def test_weights_are_in_the_networks_order() -> None:
    data, x = random_network(7)
    made = variants(data, x)
    file = made.file(all_in(list(made.layers), W8A16))
    biases = [node.inputs[2] for node in file.nodes if node.op == "Conv" and node.inputs[2:]]
    corrected = [name for name in biases if name not in made.graph.constants]
    assert len(corrected) > 2
    assert [name for name in file.constants if name in corrected] == corrected


def test_weights_beyond_float16_are_not_offered_in_it() -> None:
    data, x = random_network(2)
    parsed = onnx.load_from_string(data)
    node = next(node for node in parsed.graph.node if node.op_type == "Conv")
    for array in parsed.graph.initializer:
        if array.name == node.input[1]:
            large = onnx.numpy_helper.to_array(array) * np.float32(1e6)
            array.CopyFrom(onnx.numpy_helper.from_array(large, array.name))
    made = variants(parsed.SerializeToString(), x)
    offered = [made.offers(name, FLOAT16) for name in made.layers]
    assert not all(offered)
    assert all(made.offers(name, W8A16) for name in made.layers)


def test_reports_name_precisions() -> None:
    layers = tuple(LayerReport(rung, "Conv", 9, rung, 0.1, 5.0, 3) for rung in RUNGS)
    trial = Trial("held out", {INT8: 1, FLOAT32: 3}, 1.0, 1.0, 0.1, 7)
    made = Quantized(b"", "agreement", 1.0, 1.0, 0.1, layers, (2, 2), (trial,), 7, 9)
    page = quantize_page("network", made)
    assert layer_counts(made) in page
    assert layer_counts(made) == ("1 of 4 layers in int8, 1 in w8a16, 1 in float16, 1 in float32")
    assert any("computed in float32" in note for note in notes(made))
    assert all(note in page for note in notes(made))
    assert all(f"<td class=text>{rung}</td>" in page for rung in RUNGS)
