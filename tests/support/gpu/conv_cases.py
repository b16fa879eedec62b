"""Convolutions on a device, in every algorithm, arithmetic, dtype and layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.gpu.conv import DeviceConvPlan
from leanconv.reference import direct
from leanconv.spec import Activation, ConvSpec
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Precision
from support.errors import relative_error
from support.gpu.stand import Case, Row, Stand

TENSOR, VIEW, SLICES = "direct:loads=tma", "direct:loads=windows", "direct:loads=slices"
BOXES, IN_ROW = "direct:loads=boxes", "depthwise:outputs=4"

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
    ("mb2ic40ih7oc72kh1", TENSOR, {"precision": "fp16x3", "residual": True}),
    ("mb1ic64iw70oc24kw5pw2", TENSOR, {"precision": "tf32x3"}),
    ("mb2ic8ih11iw13oc18kh3kw2sh2sw3", VIEW, {"precision": "tf32x3", "residual": True}),
    ("mb1ic4ih23oc24kh7sh2", VIEW, {"precision": "fp16x3", "activation": "relu"}),
    ("mb1ic16ih23oc24kh3sh4dh1dw0", VIEW, {"precision": "fp16x3", "layout": "NCHW"}),
    ("mb2ic8ih19iw21oc24kh11sh4", TENSOR, {"precision": "fp16x3", "residual": True}),
    ("mb2ic16ih9oc24kh1sh2", TENSOR, {"precision": "tf32x3"}),
    ("mb5ic16ih9iw7oc24kh3", VIEW, {"precision": "fp16x3"}),
    ("mb2ic3ih19iw17oc24kh7ph3sh2", "direct", {"precision": "fp16x3", "residual": True}),
    ("mb2ic3ih9iw11oc18kh3kw2ph1pw0dh1", "direct:loads=pointers", {"dtype": FLOAT16}),
    ("mb2ic40ih5oc72kh1", SLICES, {"residual": True}),
    ("mb1ic300ih3iw5oc20kh1", SLICES, {"precision": "tf32x3", "layout": "NCHW"}),
    ("mb3ic24ih3oc40kh1", SLICES, {"dtype": FLOAT16, "residual": True}),
    ("mb3ic24ih3oc40kh1", SLICES, {"dtype": BFLOAT16}),
    ("mb1ic17iw23oc9kw1", SLICES, {"precision": "ieee"}),
    ("mb2ic40ih9oc72kh1", BOXES, {"dtype": FLOAT16, "residual": True}),
    ("mb1ic200ih5iw3oc40kh1", BOXES, {"dtype": FLOAT16, "layout": "NCHW"}),
    ("mb3ic24id3ih3oc9kd1kh1", BOXES, {"dtype": BFLOAT16}),
    ("mb2ic36iw70oc20kw1", BOXES, {"precision": "tf32"}),
    ("mb1ic40ih9oc24kh3ph1", "direct", {"dtype": FLOAT64}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"dtype": FLOAT16}),
    ("mb1ic16ih9oc24kh3ph1", "direct", {"dtype": BFLOAT16}),
    ("g24mb2ic24ih9oc24kh3ph1", None, {}),
    ("g24mb1ic24ih11iw9oc24kh5kw3ph2sh2", "depthwise", {"residual": True, "dtype": FLOAT16}),
    ("g8mb2ic8ih9oc24kh5ph1sh2dh1", "depthwise", {"layout": "NCHW", "residual": True}),
    ("g8mb1ic8ih12oc8kh7ph3", "depthwise", {"dtype": FLOAT64}),
    ("g24mb2ic24ih9iw11oc24kh3ph1", IN_ROW, {"residual": True}),
    ("g72mb1ic72ih11iw10oc72kh5kw3ph2pw1sh2", IN_ROW, {"dtype": FLOAT16}),
    ("g40mb1ic40ih7iw17oc40kh3ph4pw5dh1dw0", IN_ROW, {"dtype": BFLOAT16, "layout": "NCHW"}),
    ("g9mb1ic9ih3iw2oc9kh1kw5pw2sh1sw2", IN_ROW, {"activation": "prelu"}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "winograd", {"residual": True}),
    ("mb2ic5ih9iw11oc18kh3kw2ph1pw0", "winograd:m=2", {"precision": "fp16x3"}),
    ("mb1ic4ih5iw6oc6kh5ph2", "winograd:m=2", {"dtype": FLOAT64}),
    ("mb1ic5ih19iw17oc6kh3ph1", "winograd:m=8", {"residual": True}),
    ("mb1ic5ih13oc6kh11kw2", "winograd:m=6", {"dtype": FLOAT64, "residual": True}),
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
    dtype: str = FLOAT32,
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
    held = FLOAT32 if dtype == BFLOAT16 else dtype

    def array(shape: Sequence[int]) -> np.ndarray:
        if integers:
            return random.integers(-4, 5, shape).astype(held)
        made = random.standard_normal(shape)
        if dtype == BFLOAT16:  # numbers that it holds exactly
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
    expected = direct.convolve(replace(spec, precision=Precision.of("float64")), *wide)
    return {
        "error": relative_error(found.astype(np.float64), expected),
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
            f"{algorithm or ''} {problem} {shown}",
            lambda p=problem, a=algorithm, r=rest: convolution(stand, p, a, **r),
        )
    for activation in ACTIVATIONS:
        yield (
            f"epilogue {activation}",
            lambda a=activation: convolution(stand, "mb1ic5ih7oc9kh3", "direct", activation=a),
        )
    exact = ("direct:loads=pointers", "im2col", "mec:solution=B", "im2win", "im2win:form=high")
    for algorithm in exact:
        for precision in ("ieee", "fp16x3", "tf32x3"):
            yield (
                f"integers {algorithm} {precision}",
                lambda a=algorithm, p=precision: convolution(
                    stand, "mb2ic7ih9oc11kh3ph1", a, precision=p, integers=True
                ),
            )
    for algorithm, problem in ((TENSOR, "mb2ic8ih9oc11kh3ph1"), (VIEW, "mb2ic8ih11oc11kh3sh2")):
        yield (
            f"integers {algorithm}",
            lambda a=algorithm, p=problem: convolution(
                stand, p, a, precision="fp16x3", integers=True
            ),
        )
    for precision in ("ieee", "tf32x3"):
        yield (
            f"integers {SLICES} {precision}",
            lambda p=precision: convolution(
                stand, "mb2ic50ih4oc11kh1", SLICES, precision=p, integers=True
            ),
        )
    for algorithm in ("depthwise:outputs=1", IN_ROW):
        yield (
            f"integers {algorithm}",
            lambda a=algorithm: convolution(stand, "g12mb2ic12ih9oc12kh3ph1", a, integers=True),
        )
    yield (
        f"integers {BOXES}",
        lambda: convolution(stand, "mb2ic48ih4oc11kh1", BOXES, precision="tf32", integers=True),
    )
