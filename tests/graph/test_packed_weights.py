"""Weights in blocks of 2, 4 and 8 bits against onnxruntime: products, gathers, DequantizeLinear."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc

FLOAT = TensorProto.FLOAT
BLOCKED = (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8)


def model(nodes, given, wanted, held, opset=21):
    """A model of nodes; inputs and outputs as (name, type, shape), weights as arrays by name."""
    held = [
        each if isinstance(each, TensorProto) else numpy_helper.from_array(each, name)
        for name, each in held.items()
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info(*each) for each in given], [info(*each) for each in wanted], held
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(proto, feed, error=1e-5):
    """The results are onnxruntime's, but for rounding errors; it makes integers of x if it may."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feed)
    ours = lc.load(proto, threads=1).run(None, feed)
    for mine, wanted in zip(ours, theirs, strict=True):
        most = np.abs(wanted).max(initial=1e-9)
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=error * most)


@pytest.mark.parametrize("seed", range(8))
def test_products_with_packed_weights(seed):
    """MatMulNBits of random extents, blocks, bits, with and without zero points, groups, bias."""
    rng = np.random.default_rng(seed)
    bits, block = int(rng.choice([4, 4, 8])), int(rng.choice([16, 32, 64]))
    inner, columns = int(rng.integers(1, 130)), int(rng.integers(1, 20))
    if bits == 8:
        inner = block * max(1, inner // block)
    blocks = -(-inner // block)
    held = {
        "b": rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": rng.standard_normal((columns, blocks)).astype(np.float32) * 0.1,
    }
    names = ["a", "b", "s", "", "", ""]
    kind = seed % 3
    if kind == 1:
        held["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)
        names[3] = "z"
    if kind == 2 and bits == 4:
        held["z"] = rng.uniform(0, 15, (columns, blocks)).astype(np.float32)
        names[3] = "z"
    if seed % 2:
        held["bias"] = rng.standard_normal(columns).astype(np.float32)
        names[5] = "bias"
    node = helper.make_node(
        "MatMulNBits",
        names,
        ["y"],
        domain="com.microsoft",
        K=inner,
        N=columns,
        bits=bits,
        block_size=block,
    )
    rows = [(3,), (1, 1), (2, 2)][seed % 3]
    x = rng.standard_normal((*rows, inner)).astype(np.float32)
    proto = model([node], [("a", FLOAT, x.shape)], [("y", FLOAT, None)], held)
    check(proto, {"a": x})


@pytest.mark.parametrize("seed", range(6))
def test_products_whose_rows_may_become_bytes(seed):
    """accuracy_level 4: onnxruntime rounds rows to bytes, too; a max_error asks for floats."""
    rng = np.random.default_rng(seed)
    block, inner, columns = 16 << seed % 3, int(rng.integers(1, 400)), int(rng.integers(1, 90))
    blocks, rows = -(-inner // block), (1, 2, 5, 33)[seed % 4]
    held = {
        "b": rng.integers(0, 256, (columns, blocks, block // 2)).astype(np.uint8),
        "s": rng.standard_normal((columns, blocks)).astype(np.float32) * 0.1,
    }
    names = ["a", "b", "s"]
    if seed % 2:
        held["z"] = rng.integers(0, 256, (columns, -(-blocks // 2))).astype(np.uint8)
        names.append("z")
    sizes = {"K": inner, "N": columns, "bits": 4, "block_size": block}
    x = rng.standard_normal((rows, inner)).astype(np.float32)

    def proto(level):
        node = helper.make_node(
            "MatMulNBits", names, ["y"], domain="com.microsoft", accuracy_level=level, **sizes
        )
        return model([node], [("a", FLOAT, ["rows", inner])], [("y", FLOAT, None)], held)

    check(proto(4), {"a": x}, 2.0**-7)
    floats = lc.load(proto(0), threads=1)(x)
    network = lc.load(proto(4), threads=1)
    assert np.abs(network(x) - floats).max() <= 2.0**-6 * np.abs(floats).max()
    assert network.plan.predicted_error >= 2.0**-7 or network.plan.target.isa == "neon"
    exact = lc.load(proto(4), threads=1, max_error=1e-4)(x)
    np.testing.assert_allclose(exact, floats, rtol=0, atol=1e-5 * np.abs(floats).max())


@pytest.mark.parametrize("zeros", ["", "uint8", "float32"])
def test_products_whose_rows_name_their_blocks(zeros):
    """MatMulNBits with g_idx: each of K has the scale and the zero point of a block it names."""
    rng = np.random.default_rng(len(zeros))
    inner, columns, blocks = 37, 70, 3
    held = {
        "b": rng.integers(0, 256, (columns, blocks, 8)).astype(np.uint8),
        "s": rng.standard_normal((columns, blocks)).astype(np.float32),
        "g": rng.integers(0, blocks, inner).astype(np.int32),
    }
    away = np.full((columns, blocks), 8.0)
    if zeros:
        away = rng.integers(0, 16, (columns, blocks))
        held["z"] = away.astype(np.float32)
    if zeros == "uint8":
        even = np.pad(away, ((0, 0), (0, 1)))
        held["z"] = (even[:, ::2] | even[:, 1::2] << 4).astype(np.uint8)
    sizes = {"K": inner, "N": columns, "bits": 4, "block_size": 16}
    names = ["a", "b", "s", "z" if zeros else "", "g"]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **sizes)
    x = rng.standard_normal((2, inner)).astype(np.float32)
    proto = model([node], [("a", FLOAT, x.shape)], [("y", FLOAT, None)], held)
    codes = np.stack([held["b"] & 15, held["b"] >> 4], -1).reshape(columns, -1)[:, :inner]
    weights = (codes - away[:, held["g"]]) * held["s"][:, held["g"]].astype(np.float64)
    wanted = x.astype(np.float64) @ weights.T
    found = lc.load(proto, threads=1)(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("number", BLOCKED)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_constants_in_blocks(number, axis):
    """DequantizeLinear of a constant whose last block is not full, as weights of a product."""
    rng = np.random.default_rng(axis)
    shape, block = (5, 7, 9), 4
    blocks = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    low, high = (0, 16) if number in (TensorProto.UINT4, TensorProto.UINT8) else (-8, 8)
    codes, zeros = rng.integers(low, high, shape), rng.integers(low, high, blocks)
    held = {
        "w": helper.make_tensor("w", number, shape, codes.flat),
        "z": helper.make_tensor("z", number, blocks, zeros.flat),
        "s": rng.standard_normal(blocks).astype(np.float32),
    }
    node = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=block)
    add = helper.make_node("MatMul", ["x", "d"], ["y"])
    x = rng.standard_normal((2, 7)).astype(np.float32)
    check(model([node, add], [("x", FLOAT, x.shape)], [("y", FLOAT, None)], held), {"x": x})


def test_products_of_any_number_of_rows():
    """One network, whose plans share their weights, for few rows and many."""
    rng = np.random.default_rng(0)
    held = {
        "b": rng.integers(0, 256, (70, 4, 8)).astype(np.uint8),
        "s": rng.standard_normal((70, 4)).astype(np.float32),
    }
    sizes = {"K": 60, "N": 70, "bits": 4, "block_size": 16}
    node = helper.make_node("MatMulNBits", ["a", "b", "s"], ["y"], domain="com.microsoft", **sizes)
    proto = model([node], [("a", FLOAT, ["n", "t", 60])], [("y", FLOAT, None)], held)
    network = lc.load(proto, threads=1)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in ((1, 1), (2, 3), (3, 3), (1, 17), (5, 9), (1, 1)):
        x = rng.standard_normal((*shape, 60)).astype(np.float32)
        (found,), (wanted,) = network.run(None, {"a": x}), session.run(None, {"a": x})
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "transB"])
@pytest.mark.parametrize("number", BLOCKED)
def test_products_with_constants_in_blocks(number, op):
    """Weights of DequantizeLinear with blocks along the sum stay codes: their bytes tell."""
    rng = np.random.default_rng(number)
    inner, columns, block, turned = 70, 64, 16, op == "transB"
    shape, blocks = [(inner, columns), (5, columns)]
    low = 0 if number in (TensorProto.UINT4, TensorProto.UINT8) else -8
    codes, zeros = rng.integers(low, low + 16, shape), rng.integers(low, low + 16, blocks)
    scales = rng.standard_normal(blocks).astype(np.float32)
    if turned:
        codes, zeros, scales = codes.T, zeros.T, np.ascontiguousarray(scales.T)
    held = {
        "w": helper.make_tensor("w", number, codes.shape, codes.flat),
        "z": helper.make_tensor("z", number, zeros.shape, zeros.flat),
        "s": scales,
    }
    names, given = ["x", "d"], {}
    if op != "MatMul":
        held["c"], names, given = (
            rng.standard_normal(columns).astype(np.float32),
            [*names, "c"],
            {"transB": int(turned), "beta": 0.5},
        )
    floats = helper.make_node(
        "DequantizeLinear", ["w", "s", "z"], ["d"], axis=int(turned), block_size=block
    )
    product = helper.make_node(op if op == "MatMul" else "Gemm", names, ["y"], **given)
    x = rng.standard_normal((3, inner)).astype(np.float32)
    proto = model([floats, product], [("x", FLOAT, x.shape)], [("y", FLOAT, None)], held)
    check(proto, {"x": x})
    bits = 4 if number in (TensorProto.INT4, TensorProto.UINT4) else 8
    held_bytes = columns * (5 * block * bits // 8 + 5 * 5) + (op != "MatMul") * columns * 4
    assert lc.load(proto, threads=1).plan.weight_bytes <= held_bytes + 256


@pytest.mark.parametrize("seed", range(12))
def test_products_with_codes_of_one_scale_for_each_column(seed):
    """Weights alone are codes: few rows of floats read them so, and take their bytes."""
    rng = np.random.default_rng(seed)
    number, bits = [(TensorProto.INT8, 8), (TensorProto.UINT8, 8), (TensorProto.INT4, 4)][seed % 3]
    inner, columns, turned, several = 301, 80, bool(seed & 1), bool(seed & 2)
    least = 0 if number == TensorProto.UINT8 else -(1 << (bits - 1))
    codes = rng.integers(least, least + (1 << bits), (columns, inner))
    zeros = rng.integers(least, least + (1 << bits), columns) if several else np.array(3)
    codes = codes if turned else codes.T
    shape = (columns,) if several else ()
    held = {
        "w": helper.make_tensor("w", number, codes.shape, codes.flat),
        "z": helper.make_tensor("z", number, shape, zeros.flat),
        "s": rng.uniform(-0.1, 0.1, shape).astype(np.float32),
        "c": rng.standard_normal(columns).astype(np.float32),
    }
    floats = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=int(not turned))
    product = helper.make_node("Gemm", ["x", "d", "c"][: 2 + seed % 2], ["y"], transB=int(turned))
    if seed % 2 == 0:
        product = helper.make_node("MatMul", ["x", "d"], ["y"])
        del held["c"]
    x = rng.standard_normal((1 + seed, inner)).astype(np.float32)
    proto = model([floats, product], [("x", FLOAT, x.shape)], [("y", FLOAT, None)], held)
    check(proto, {"x": x})
    plan = lc.load(proto, threads=1).plan
    assert [step.op for step in plan.steps] == ["MatMulNBits"]
    assert plan.weight_bytes <= 128 * (304 * bits // 8 + 5) + columns * 4 + 256


@pytest.mark.parametrize("seed", range(8))
def test_gathers_of_codes(seed):
    """GatherBlockQuantized of int4, uint4 and packed uint8; negative indices, which are data."""
    rng = np.random.default_rng(seed)
    packed = seed % 3 == 2
    shape, block = [int(rng.integers(2, 9)), 32 * int(rng.integers(1, 4))], 16 << int(seed % 2)
    blocks = (shape[0], -(-shape[1] // block))
    number = (TensorProto.INT4, TensorProto.UINT4)[seed % 2]
    low = -8 if number == TensorProto.INT4 else 0
    codes, zeros = rng.integers(low, low + 16, shape), rng.integers(low, low + 16, blocks)
    held = {"s": rng.standard_normal(blocks).astype(np.float32)}
    if packed:
        held["w"] = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(np.uint8)
        held["z"] = rng.integers(0, 256, (shape[0], -(-blocks[1] // 2))).astype(np.uint8)
    else:
        held["w"] = helper.make_tensor("w", number, shape, codes.flat)
        held["z"] = helper.make_tensor("z", number, blocks, zeros.flat)
    names = ["w", "i", "s", *["z"] * (seed < 5)]
    if "z" not in names:
        del held["z"]
    node = helper.make_node(
        "GatherBlockQuantized",
        names,
        ["y"],
        domain="com.microsoft",
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )
    i = rng.integers(-shape[0], shape[0], (2, 3)).astype(np.int64)
    proto = model([node], [("i", TensorProto.INT64, [2, 3])], [("y", FLOAT, None)], held)
    check(proto, {"i": i})


def test_what_does_not_fit_is_refused():
    """Too few bytes, wrong blocks, groups outside."""
    good = {
        "b": np.zeros((4, 2, 8), np.uint8),
        "s": np.ones((4, 2), np.float32),
        "g": np.arange(32, dtype=np.int32) // 16,
    }
    numbers = {"K": 32, "N": 4, "bits": 4, "block_size": 16}

    def load(held=good, more=(), **changed):
        node = helper.make_node(
            "MatMulNBits",
            ["a", "b", "s", *more],
            ["y"],
            domain="com.microsoft",
            **{**numbers, **changed},
        )
        lc.load(model([node], [("a", FLOAT, [1, 32])], [("y", FLOAT, None)], held))

    load()
    load(more=("", "g"))
    wrong = [
        ({"block_size": 24}, "block_size is 24"),
        ({"bits": 3}, "bits is 3"),
        ({"K": 33}, "rows of K elements"),
        ({"N": 1 << 40}, "input 1"),
        ({"block_size": 1 << 40}, "input 1"),
        ({"held": {**good, "s": np.ones(7, np.float32)}}, "input 2"),
        ({"held": {**good, "g": good["g"] + 1}, "more": ("", "g")}, "input 4 holds"),
    ]
    for changed, text in wrong:
        with pytest.raises((lc.ModelError, lc.UnsupportedError), match=text):
            load(**changed)
