"""Convolutions, nodes, networks and tiles on a device, each compared with float64.

The device is a fake one in Triton's interpreter (`interpret_worker.py`) or a real one
(`test_gpu_device.py`): the cases are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import network_models
import numpy as np
from configurations import KINDS

from leanconv.gpu.arithmetic import Arithmetic
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.compiler import Compile
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.device.memory import Memory
from leanconv.gpu.device.runner import Module
from leanconv.gpu.loaded import DeviceNetwork
from leanconv.gpu.lowering.gemm import Epilogue, Product, lower_product
from leanconv.gpu.lowering.lowered import Lowered, stored, unstored
from leanconv.gpu.lowering.patches import (
    TAPS,
    WINDOWS,
    lower_patches,
    patches_reject,
    patchings,
)
from leanconv.gpu.lowering.task import ConvTask
from leanconv.gpu.lowering.tiles import tiles
from leanconv.gpu.lowering.windows import conv_windows
from leanconv.gpu.machine import machine_of
from leanconv.gpu.network import BoundDeviceNetwork
from leanconv.graph.onnx_import import read_model
from leanconv.graph.ops import evaluate
from leanconv.reference import direct
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.format import aligned
from node_runner import one_node

Row = dict[str, Any]
Case = tuple[str, Callable[[], Row]]
TENSOR, VIEW = "direct:loads=tma", "direct:loads=windows"


@dataclass(frozen=True)
class Stand:
    """What cases run on: a device, what makes its code, and what looks beside its buffers."""

    driver: Driver
    compile_code: Compile
    check_guards: Callable[[], None]


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
    ("mb2ic5id4ih6iw7oc18kd3kh2kw3pd1ph0pw1", "direct", {}),
    ("mb1ic16id5ih6iw7oc8kd2kh3kw2sd2dd1", "direct", {"precision": "fp16x3", "layout": "NCHW"}),
    ("g2mb1ic8id4ih5iw5oc6kd3kh3kw3pd1ph1pw1", None, {"residual": True}),
    ("mb2ic8ih9iw11oc18kh3kw2ph1pw0", TENSOR, {"precision": "tf32x3", "residual": True}),
    ("mb1ic16ih9oc24kh3ph1", TENSOR, {"precision": "fp16x3", "scale": 1e7, "activation": "relu"}),
    ("mb1ic16ih9oc24kh3ph1dh1", TENSOR, {"precision": "fp16x3", "layout": "NCHW"}),
    ("mb2ic40ih7oc72kh1", TENSOR, {"dtype": "float16", "residual": True}),
    ("mb1ic16ih9oc24kh3ph1", TENSOR, {"dtype": "bfloat16"}),
    ("mb1ic64iw70oc24kw5pw2", TENSOR, {"precision": "tf32"}),
    ("mb2ic8ih11iw13oc18kh3kw2sh2sw3", VIEW, {"precision": "tf32x3", "residual": True}),
    ("mb1ic4ih23oc24kh7sh2", VIEW, {"precision": "fp16x3", "activation": "relu"}),
    ("mb1ic16ih23oc24kh3sh4dh1dw0", VIEW, {"precision": "fp16x3", "layout": "NCHW"}),
    ("mb2ic8ih19iw21oc24kh11sh4", TENSOR, {"dtype": "float16", "residual": True}),
    ("mb2ic16ih9oc24kh1sh2", TENSOR, {"precision": "tf32"}),
    ("mb1ic16ih9iw11oc24kh3", VIEW, {"dtype": "bfloat16"}),
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
    ("mb1ic5ih19iw17oc6kh3ph1", "winograd:m=8", {"residual": True}),
    ("mb1ic5ih13oc6kh11kw2", "winograd:m=6", {"dtype": "float64", "residual": True}),
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
    stand: Stand,
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
        spec, w, bias, slope, algorithm, None, None, precision, stand.driver, stand.compile_code
    )
    found = plan(x, residual=added)
    stand.check_guards()
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


def convolutions(stand: Stand) -> Iterator[Case]:
    for problem, algorithm, rest in CONVOLUTIONS:
        shown = " ".join(f"{k}={v}" for k, v in rest.items())
        yield (
            f"conv {algorithm or ''} {problem} {shown}",
            lambda p=problem, a=algorithm, r=rest: convolution(stand, p, a, **r),
        )
    for activation in ACTIVATIONS:
        yield (
            f"conv epilogue {activation}",
            lambda a=activation: convolution(stand, "mb1ic5ih7oc9kh3", "direct", activation=a),
        )
    exact = ("direct:loads=pointers", "im2col", "mec:solution=B", "im2win", "im2win:form=high")
    for algorithm in exact:
        for precision in ("ieee", "fp16x3", "tf32x3"):
            yield (
                f"conv integers {algorithm} {precision}",
                lambda a=algorithm, p=precision: convolution(
                    stand, "mb2ic7ih9oc11kh3ph1", a, precision=p, integers=True
                ),
            )
    for algorithm, problem in ((TENSOR, "mb2ic8ih9oc11kh3ph1"), (VIEW, "mb2ic8ih11oc11kh3sh2")):
        yield (
            f"conv integers {algorithm}",
            lambda a=algorithm, p=problem: convolution(
                stand, p, a, precision="fp16x3", integers=True
            ),
        )
    yield (
        "conv integers depthwise",
        lambda: convolution(stand, "g12mb2ic12ih9oc12kh3ph1", "depthwise", integers=True),
    )


# -- single nodes ---------------------------------------------------------------------------


def _array(*shape: int, positive: bool = False) -> np.ndarray:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return np.abs(made) + 0.1 if positive else made


def node(
    stand: Stand,
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
    network = BoundDeviceNetwork(graph, stand.driver, "float32", compile_code=stand.compile_code)
    (found,) = network.run(list(inputs))
    stand.check_guards()
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
    deep = {"strides": (1, 2, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 1)}
    deep |= {"group": 1, "activation": None}
    yield "Conv", [_array(1, 3, 4, 5, 4)], deep, {"w": _array(6, 3, 2, 3, 2), "b": _array(6)}
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
    block = {"strides": (2, 3, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 2)}
    block |= {"group": 2, "activation": Activation("relu"), "output_padding": (0, 1, 0)}
    yield (
        "ConvTranspose",
        [_array(2, 4, 3, 2, 4)],
        block,
        {"w": _array(4, 3, 3, 2, 2), "b": _array(6)},
    )
    same = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    same |= {"activation": None, "output_padding": (0, 0)}
    yield "ConvTranspose", [_array(1, 4, 5, 6)], same, {"w": _array(4, 3, 3, 3)}


def nodes(stand: Stand) -> Iterator[Case]:
    for number, (op, inputs, attributes, *rest) in enumerate(_nodes()):
        constants, order = (*rest, {}, ())[:2] if len(rest) < 2 else rest
        yield (
            f"node {number} {op}",
            lambda o=op, i=inputs, c=constants, r=order, a=attributes: node(stand, o, i, c, r, a),
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


def network(stand: Stand, name: str, dtype: str | None) -> Row:
    """Load a network, run it twice (the second time from its graph), compare with float64."""
    built = network_models.model(name)
    x = network_models.images(built, 1)
    net = DeviceNetwork(read_model(built), stand.driver, dtype, compile_code=stand.compile_code)
    found = net(x)
    stand.check_guards()
    (expected,) = network_models.by_numpy(built, {net.inputs[0].name: x}).values()
    return {
        "error": relative(found.astype(np.float64), expected),
        "allowed": 8 * net.plan.predicted_error,
        "used": net.used_bytes,
        "counted": net.plan.memory_bytes,
    }


def networks(stand: Stand) -> Iterator[Case]:
    for name, dtype in NETWORKS:
        yield f"network {name} {dtype or ''}", lambda n=name, d=dtype: network(stand, n, d)


# -- every tile -----------------------------------------------------------------------------

# Of odd extents, padded; and in place with all that alignment allows. Partial tiles in both.
TILED = ("mb2ic24ih13iw11oc200kh3ph1", "mb2ic64ih14iw11oc136kh3")
STRIDED = "mb2ic24ih29iw23oc136kh3sh2"


def run_lowered(stand: Stand, lowered: Lowered, spec: ConvSpec, x: np.ndarray) -> np.ndarray:
    """Run launches that read x and write y, both channels last."""
    driver = stand.driver
    driver.enter()
    memory, places = Memory(driver), {}
    for name, array in (*lowered.constants.items(), ("x", stored(x, spec.dtype))):
        places[name] = ctypes.c_uint64(memory.allocate(aligned(array.nbytes)))
        memory.upload(places[name].value, array)
    for name, size in lowered.temporaries.items():
        places[name] = ctypes.c_uint64(memory.allocate(aligned(size)))
    y = memory.array(spec.output_shape, spec.dtype)
    places["y"] = ctypes.c_uint64(y.address)
    module = Module(driver, (each.code for each in lowered.launches), stand.compile_code)
    for launch in lowered.launches:
        module.bind(launch, places)()
    found = y.numpy()
    stand.check_guards()
    return found


def tile(stand: Stand, spec: ConvSpec, make: Callable[[np.ndarray], Lowered]) -> Row:
    """One tile in one arithmetic, against float64 on the same rounded numbers."""
    random = np.random.default_rng(0)
    kept = "float32" if spec.dtype == "bfloat16" else spec.dtype

    def rounded(shape: Sequence[int]) -> np.ndarray:
        made = random.standard_normal(shape).astype(kept)
        return unstored(stored(made, spec.dtype), spec.dtype)

    x, w = rounded(spec.input_shape), rounded(spec.weight_shape)
    lowered = make(w)
    found = run_lowered(stand, lowered, spec, x)
    expected = direct.convolve(
        replace(spec, dtype="float64"), x.astype(np.float64), w.astype(np.float64)
    )
    half = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(spec.dtype, 0.0)
    return {
        "error": relative(found.astype(np.float64), expected),
        "allowed": 8 * max(lowered.error, half),
        "predicted": lowered.error,
        "arithmetic": lowered.arithmetic,
    }


def tile_cases(stand: Stand) -> Iterator[Case]:
    """The main kernel by pointers and by tensor copies, in every tile and arithmetic."""
    driver = stand.driver
    machine = machine_of(driver)
    for arithmetic, dtype in KINDS:
        for problem in TILED:
            spec = ConvSpec.parse(problem, dtype=dtype, layout="NHWC")
            windows = conv_windows(spec, 32)
            product = Product(windows, spec.out_channels, dtype, "x", "y", Epilogue(), "c")
            for each in tiles(arithmetic, dtype, driver.arch):

                def pointers(w: np.ndarray, a: Any = arithmetic, p: Any = product, t: Any = each):
                    shape = (p.columns, p.windows.segments, p.windows.length)
                    segments = np.moveaxis(w, 1, -1).reshape(shape)
                    return lower_product(p, segments, (a,), machine, "direct", t)

                yield (
                    f"tile {arithmetic.name} {dtype} {each} {problem}",
                    lambda s=spec, m=pointers: tile(stand, s, m),
                )
            yield from _patch_tiles(stand, spec, arithmetic)
        yield from _patch_tiles(stand, ConvSpec.parse(STRIDED, dtype=dtype), arithmetic)


def _patch_tiles(stand: Stand, spec: ConvSpec, arithmetic: Arithmetic) -> Iterator[Case]:
    """Every way to cut a convolution for tensor copies, in both forms of its input."""
    machine, spec = machine_of(stand.driver), replace(spec, layout="NHWC")
    task = ConvTask(spec, spec.dtype, (arithmetic,), "x", "y", Epilogue(), "c")
    for form in (TAPS, WINDOWS):
        if patches_reject(task, machine, form) is None:
            for cut in patchings(task, machine, True, form):
                yield (
                    f"tile {arithmetic.name} {spec.dtype} {cut} {spec}",
                    lambda c=cut: tile(stand, spec, lambda w: lower_patches(task, w, c)),
                )


def sampled_tiles(stand: Stand) -> Iterator[Case]:
    """A few of `tile_cases`: that these run at all."""
    return (case for number, case in enumerate(tile_cases(stand)) if number % 43 == 0)


KINDS_OF_CASES: dict[str, Callable[[Stand], Iterator[Case]]] = {
    "conv": convolutions,
    "node": nodes,
    "network": networks,
    "tile": tile_cases,
    "sample": sampled_tiles,
}


def run_case(run: Callable[[], Row]) -> Row:
    """A case's row; what it raised, as text, if it did."""
    try:
        return run()
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"[:500]}
