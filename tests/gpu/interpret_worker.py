"""Run kernels in Triton's interpreter through the whole path of a plan, and print the errors.

Run by `test_gpu_interpreter.py` in a process of its own, with TRITON_INTERPRET=1. The driver is a
fake one whose device memory is this host's: poisoned before, guarded on both sides.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fake_cuda import FakeCuda
from interpreter import execute

from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.loaded import DeviceNetwork
from leanconv.gpu.network import BoundDeviceNetwork
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops import evaluate
from leanconv.reference import direct
from leanconv.spec import Activation, ConvSpec
from networks import network_models
from node_runner import one_node

FAKE = FakeCuda(execute=execute)
DRIVER = Driver(FAKE)
Row = dict[str, Any]


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference relative to the largest value; infinite for NaN or another shape."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300))


# -- convolutions ---------------------------------------------------------------------------

# problem, algorithm, and what else differs from a plain float32 convolution in NHWC.
CONVOLUTIONS: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "direct", {}),
    ("mb1ic3ih17oc24kh3ph1sh2", "direct", {"precision": "ieee"}),
    ("mb1ic3ih19oc24kh7sh3", "direct", {"precision": "fp16x3"}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"precision": "fp16x3"}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"precision": "fp16x3", "scale": 1e-6}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"precision": "fp16x3", "scale": 1e7}),
    ("mb1ic40ih7oc24kh3ph1dh1", "direct", {"precision": "tf32x3"}),
    ("g2mb2ic40ih7oc24kh3ph1", "direct", {"precision": "tf32"}),
    ("g3mb1ic12ih8oc6kh3kw1sh2", "direct", {"precision": "fp16x3", "residual": True}),
    ("mb1ic512ih3oc24kh3", "direct", {"residual": True}),
    ("mb1ic512ih3oc24kh3", "direct", {"precision": "fp16x3", "residual": True}),
    ("mb2ic24ih6oc40kh1", "direct", {"layout": "NCHW", "residual": True}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0sh2sw3", None, {"layout": "NCHW", "residual": True}),
    ("mb2ic8iw30oc24kw5pw2", None, {"layout": "NCHW"}),
    ("mb2ic64ih9oc24kh3ph1", "direct", {"dtype": "float64"}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"dtype": "float16"}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"dtype": "bfloat16"}),
    ("g24mb2ic24ih9oc24kh3ph1", None, {}),
    ("g24mb1ic24ih11iw9oc24kh5kw3ph2sh2", "depthwise", {"residual": True, "dtype": "float16"}),
    ("g8mb2ic8ih9oc24kh5ph1sh2dh1", "depthwise", {"layout": "NCHW", "residual": True}),
    ("g8mb1ic8ih12oc8kh7ph3", "depthwise", {"dtype": "float64"}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "winograd", {"residual": True}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "winograd:m=2", {"precision": "fp16x3"}),
    ("mb1ic4ih9oc6kh5ph2", "winograd:m=2", {"dtype": "float64"}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0sh2sw1", "im2col", {"residual": True}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0dh1", "im2col", {"precision": "fp16x3"}),
    ("mb2ic16ih9iw11oc8kh3kw2ph1pw0", "mec:solution=A", {}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0sh2sw1", "mec:solution=B", {"residual": True}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0sh1sw2", "mec", {"precision": "fp16x3"}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0sh2sw1", "im2win", {"precision": "fp16x3"}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "im2win:form=basic", {}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "im2win:prefetch=0,vector=0", {"residual": True}),
)
ACTIVATIONS = (
    "relu",
    "clip:-1:2",
    "leaky_relu:0.1",
    "prelu",
    "sigmoid",
    "silu",
    "hard_sigmoid",
    "hard_swish",
    "tanh",
    "gelu",
    "gelu_tanh",
    "elu:0.7",
)


def convolution(
    problem: str,
    algorithm: str | None,
    dtype: str = "float32",
    precision: str | None = None,
    layout: str = "NHWC",
    residual: bool = False,
    activation: str = "relu6",
    scale: float = 1.0,
    integers: bool = False,
) -> Row:
    """Plan and run one convolution, and compare it with float64 on the same rounded inputs."""
    act = None if integers else Activation.parse(activation)
    spec = ConvSpec.parse(
        problem, dtype=dtype, layout=layout, bias=True, residual=residual, activation=act
    )
    random = np.random.default_rng(0)
    held = "float32" if dtype == "bfloat16" else dtype

    def array(shape: Sequence[int]) -> np.ndarray:
        if integers:
            return random.integers(-4, 5, shape).astype(held)
        made = random.standard_normal(shape)
        if dtype == "bfloat16":  # numbers that it holds exactly
            return (made.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
        return made.astype(held)

    x, w = array(spec.input_shape) * np.asarray(scale, held), array(spec.weight_shape)
    bias = array((spec.out_channels,))
    added = array(spec.output_shape) if residual else None
    slope = array((spec.out_channels,)) if act and act.kind == "prelu" else None
    plan = DeviceConvPlan(
        spec, w, bias, slope, algorithm, None, None, precision, DRIVER, FAKE.compile
    )
    found = plan(x, residual=added)
    FAKE.check_guards()
    wide = [None if a is None else a.astype(np.float64) for a in (x, w, bias, added, slope)]
    assert wide[0] is not None
    assert wide[1] is not None
    expected = direct.convolve(replace(spec, dtype="float64"), *wide)
    return {
        "error": relative(found.astype(np.float64), expected),
        "allowed": 0.0 if integers else 8 * plan.predicted_error,
        "predicted": plan.predicted_error,
        "used": plan.used_bytes,
        "counted": plan.memory_bytes,
        "arithmetic": plan.arithmetic,
    }


def convolutions() -> Iterator[tuple[str, Callable[[], Row]]]:
    for problem, algorithm, rest in CONVOLUTIONS:
        shown = " ".join(f"{k}={v}" for k, v in rest.items())
        yield (
            f"conv {algorithm or ''} {problem} {shown}",
            lambda p=problem, a=algorithm, r=rest: convolution(p, a, **r),
        )
    for activation in ACTIVATIONS:
        yield (
            f"conv epilogue {activation}",
            lambda a=activation: convolution("mb1ic5ih7oc9kh3", "direct", activation=a),
        )
    exact = ("direct", "im2col", "mec:solution=B", "im2win", "im2win:form=high")
    for algorithm in exact:
        for precision in ("ieee", "fp16x3", "tf32x3"):
            yield (
                f"conv integers {algorithm} {precision}",
                lambda a=algorithm, p=precision: convolution(
                    "mb2ic7ih9oc11kh3ph1", a, precision=p, integers=True
                ),
            )
    yield (
        "conv integers depthwise",
        lambda: convolution("g12mb2ic12ih9oc12kh3ph1", "depthwise", integers=True),
    )


# -- single nodes ---------------------------------------------------------------------------


def _array(*shape: int, positive: bool = False) -> np.ndarray:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return np.abs(made) + 0.1 if positive else made


def node(
    op: str,
    inputs: Sequence[np.ndarray],
    constants: Mapping[str, np.ndarray],
    order: Sequence[str],
    attributes: Mapping[str, Any],
) -> Row:
    """Lower one node as a network of its own, and compare it with NumPy in float64."""
    given = {f"x{number}": array for number, array in enumerate(inputs)}
    names = tuple(order) or (*given, *constants)
    made, graph = one_node(op, given, constants, names, attributes)
    del made
    network = BoundDeviceNetwork(graph, DRIVER, "float32", compile_code=FAKE.compile)
    (found,) = network.run(list(inputs))
    FAKE.check_guards()
    wide = [{**given, **constants}[name].astype(np.float64) for name in names]
    return {"error": relative(found, evaluate(op, wide, attributes)), "allowed": 2e-6}


WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
POOL = {"kernel_shape": (3, 2), "ceil_mode": False, "count_include_pad": False}
CONV = {**WINDOW, "group": 1, "activation": None}


def _nodes() -> Iterator[tuple[Any, ...]]:
    image = _array(2, 5, 3, 4)
    for op in ("Relu", "Sigmoid", "HardSwish", "Silu", "Tanh", "Exp", "Erf", "Neg", "Abs"):
        yield op, [image], {}
    for op in ("Reciprocal", "Softplus", "Sqrt", "Log"):
        yield op, [_array(2, 5, 3, 4, positive=True)], {}
    yield "LeakyRelu", [_array(3, 7)], {"alpha": 0.1}
    yield "Elu", [_array(3, 7)], {"alpha": 1.5}
    yield "HardSigmoid", [_array(3, 7)], {"alpha": 0.2, "beta": 0.4}
    yield "Gelu", [_array(3, 7)], {"approximate": "none"}
    yield "Gelu", [_array(3, 7)], {"approximate": "tanh"}
    yield "Clip", [_array(3, 7)], {"min": -0.5, "max": float("inf")}
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield op, [image, _array(5, 1, 1)], {}
    yield "Add", [_array(4), image], {}
    yield "Pow", [_array(3, 4, positive=True), _array(3, 4)], {}
    yield "Pow", [_array(3, 4), np.full((1,), 3.0, np.float32)], {}
    yield "PRelu", [_array(2, 5, 3), _array(5, 1)], {}
    whole = _array(2, 5, 9, 8)
    for op in ("MaxPool", "AveragePool"):
        yield op, [whole], {**WINDOW, **POOL}
        cut = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
        cut |= {"kernel_shape": (3, 2), "ceil_mode": True, "count_include_pad": True}
        yield op, [whole], cut
        deep = {"strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 0), "dilations": (1, 1, 1)}
        deep |= {"kernel_shape": (3, 3, 2), "ceil_mode": False, "count_include_pad": False}
        yield op, [_array(2, 5, 4, 9, 8)], deep
    for axes in ((2, 3), (1,), (0,), (0, 2), (2,), ()):
        for keepdims in (False, True):
            yield "ReduceMean", [image], {"axes": axes, "keepdims": keepdims}
    for op in ("ReduceMax", "ReduceMin", "ReduceSum"):
        yield op, [_array(2, 40, 3, 4)], {"axes": (1, 2), "keepdims": False}
    yield "Softmax", [_array(3, 17)], {"axis": 1}
    yield "Softmax", [image], {"axis": 1}
    yield "LogSoftmax", [_array(3, 17)], {"axis": 0}
    for a, b in (((3, 4), (4, 5)), ((2, 3, 7, 4), (3, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))):
        yield "MatMul", [_array(*a), _array(*b)], {}
    turned = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    yield "Gemm", [_array(4, 3), _array(5, 4), _array(5)], turned
    yield "Gemm", [_array(3, 4), _array(4, 5)], {"transA": 0, "transB": 0, "alpha": 1, "beta": 1.0}
    yield "Reshape", [_array(2, 6, 2)], {"shape": (4, 6)}
    yield "Expand", [_array(3, 1)], {"shape": (2, 3, 4)}
    for perm in ((0, 2, 3, 1), (3, 1, 0, 2), (0, 3, 1, 2)):
        yield "Transpose", [_array(2, 3, 4, 5)], {"perm": perm}
    yield "Concat", [_array(2, 3, 4), _array(2, 1, 4)], {"axis": 1}
    yield "Slice", [_array(5, 7, 4)], {"starts": (4, 1, 0), "steps": (-2, 3, 1), "sizes": (3, 2, 4)}
    for mode, pads in (("constant", (0, 1, 2, 1, 0, 3)), ("edge", (0, 1, 2, 1, 0, 3))):
        yield "Pad", [_array(2, 3, 4)], {"pads": pads, "mode": mode, "value": 1.5}
    yield "Pad", [_array(2, 3, 4)], {"pads": (0, 1, 2, 0, 0, 3), "mode": "reflect", "value": 0.0}
    size = {"sizes": (1, 2, 7, 9), "scales": (1.0, 1.0, 1.75, 1.8), "nearest_mode": "floor"}
    for mode, place in (("nearest", "asymmetric"), ("linear", "half_pixel")):
        kind = {"mode": mode, "coordinate_transformation_mode": place}
        yield "Resize", [_array(1, 2, 4, 5)], {**size, **kind}
    yield "LRN", [_array(2, 7, 3, 3)], {"size": 5, "alpha": 0.1, "beta": 0.75, "bias": 1.0}
    norm = {"s": _array(5), "b": _array(5), "m": _array(5), "v": _array(5, positive=True)}
    yield "BatchNormalization", [image], {"epsilon": 1e-5}, norm
    weights = {"w": _array(8, 5, 3, 3), "b": _array(8)}
    yield "Conv", [_array(2, 5, 6, 7)], CONV, weights
    yield "Conv", [_array(2, 5, 6, 7), _array(2, 8, 6, 7)], CONV, weights, ("x0", "w", "b", "x1")
    up = {"strides": (2, 3), "pads": (1, 0, 1, 1), "dilations": (1, 2), "group": 2}
    up |= {"activation": Activation("relu"), "output_padding": (1, 0)}
    yield "ConvTranspose", [_array(2, 4, 5, 6)], up, {"w": _array(4, 3, 3, 2), "b": _array(6)}
    line = {"strides": (2,), "pads": (1, 0), "dilations": (1,), "group": 1, "activation": None}
    yield (
        "ConvTranspose",
        [_array(2, 4, 5)],
        {**line, "output_padding": (1,)},
        {"w": _array(4, 3, 3)},
    )


def nodes() -> Iterator[tuple[str, Callable[[], Row]]]:
    for number, (op, inputs, attributes, *rest) in enumerate(_nodes()):
        constants, order = (*rest, {}, ())[:2] if len(rest) < 2 else rest
        yield (
            f"node {number} {op}",
            lambda o=op, i=inputs, c=constants, r=order, a=attributes: node(o, i, c, r, a),
        )


# -- networks -------------------------------------------------------------------------------

NETWORKS = (
    ("squeezenet_like", None),
    ("shufflenet_like", None),
    ("googlenet_like", None),
    ("mobilenet_v3_like", None),
    ("mobilenetv2", None),
    ("squeezenet_like", "float64"),
    ("shufflenet_like", "float16"),
)


def network(name: str, dtype: str | None) -> Row:
    """Load a network, run it twice (the second time from its graph), compare with float64."""
    built = network_models.model(name)
    x = network_models.images(built, 1)
    net = DeviceNetwork(read_model(built), DRIVER, dtype, compile_code=FAKE.compile)
    found = net(x)
    FAKE.check_guards()
    (expected,) = network_models.by_numpy(built, {net.inputs[0].name: x}).values()
    return {
        "error": relative(found.astype(np.float64), expected),
        "allowed": 8 * net.plan.predicted_error,
        "used": net.used_bytes,
        "counted": net.plan.memory_bytes,
    }


def networks() -> Iterator[tuple[str, Callable[[], Row]]]:
    for name, dtype in NETWORKS:
        yield f"network {name} {dtype or ''}", lambda n=name, d=dtype: network(n, d)


def main(kinds: Sequence[str]) -> None:
    groups = {"conv": convolutions, "node": nodes, "network": networks}
    for kind in kinds:
        for name, run in groups[kind]():
            start = time.perf_counter()
            try:
                row = run()
            except Exception as error:
                row = {"failure": f"{type(error).__name__}: {error}"[:500]}
            row |= {"name": name, "seconds": time.perf_counter() - start}
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
