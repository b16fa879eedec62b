"""leanconv: a convolution compiler in pure Python.

One convolution, or a whole network, NumPy arrays in and out:

    import leanconv as lc
    y = lc.conv2d(x, w, bias, stride=2, padding=1, activation="relu6")
    net = lc.load("model.onnx")
    y = net(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from leanconv import lazy_imports
from leanconv.collector import no_collections
from leanconv.errors import (
    BackendError,
    BudgetError,
    CompileError,
    DeviceError,
    InputError,
    LeanConvError,
    MissingExtraError,
    ModelError,
    OutOfMemoryError,
    ReentrantCallError,
    SpecError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from leanconv.api.compile_library import CompiledLibrary, compile  # noqa: A004
    from leanconv.api.conv import conv2d, conv_transpose2d, plan_conv2d, plan_conv_transpose2d
    from leanconv.api.conv_backward import (
        conv2d_backward,
        conv_transpose2d_backward,
        plan_conv2d_backward,
        plan_conv_transpose2d_backward,
    )
    from leanconv.api.file_network import filter_bank
    from leanconv.api.gradient_plan import GradientPlan, Gradients
    from leanconv.api.layer_plan import LayerPlan
    from leanconv.api.load import load
    from leanconv.api.network import Network
    from leanconv.api.open_library import Library, open  # noqa: A004
    from leanconv.api.tiled import tiled
    from leanconv.quantizer.quantize import quantize
    from leanconv.quantizer.result import Quantized

    ConvPlan: TypeAlias = LayerPlan
    TransposedPlan: TypeAlias = LayerPlan
    conv1d = conv3d = conv2d
    conv_transpose1d = conv_transpose3d = conv_transpose2d
    plan_conv1d = plan_conv3d = plan_conv2d
    plan_conv_transpose1d = plan_conv_transpose3d = plan_conv_transpose2d

__version__ = "0.2.0"

__all__ = [
    "BackendError",
    "BudgetError",
    "CompileError",
    "CompiledLibrary",
    "ConvPlan",
    "DeviceError",
    "GradientPlan",
    "Gradients",
    "InputError",
    "LayerPlan",
    "LeanConvError",
    "Library",
    "MissingExtraError",
    "ModelError",
    "Network",
    "OutOfMemoryError",
    "Quantized",
    "ReentrantCallError",
    "SpecError",
    "TransposedPlan",
    "UnsupportedError",
    "compile",
    "conv2d",
    "conv2d_backward",
    "conv_transpose2d",
    "conv_transpose2d_backward",
    "filter_bank",
    "load",
    "open",
    "plan_conv2d",
    "plan_conv2d_backward",
    "plan_conv_transpose2d",
    "plan_conv_transpose2d_backward",
    "quantize",
    "tiled",
]

# Imported on first use: `import leanconv` alone loads neither the compiler nor ONNX.
_LAZY = {
    "CompiledLibrary": "leanconv.api.compile_library",
    "LayerPlan": "leanconv.api.layer_plan",
    "compile": "leanconv.api.compile_library",
    "conv2d": "leanconv.api.conv",
    "plan_conv2d": "leanconv.api.conv",
    "conv_transpose2d": "leanconv.api.conv",
    "plan_conv_transpose2d": "leanconv.api.conv",
    "GradientPlan": "leanconv.api.gradient_plan",
    "Gradients": "leanconv.api.gradient_plan",
    "conv2d_backward": "leanconv.api.conv_backward",
    "plan_conv2d_backward": "leanconv.api.conv_backward",
    "conv_transpose2d_backward": "leanconv.api.conv_backward",
    "plan_conv_transpose2d_backward": "leanconv.api.conv_backward",
    "Network": "leanconv.api.network",
    "filter_bank": "leanconv.api.file_network",
    "load": "leanconv.api.load",
    "Library": "leanconv.api.open_library",
    "open": "leanconv.api.open_library",
    "tiled": "leanconv.api.tiled",
    "Quantized": "leanconv.quantizer.result",
    "quantize": "leanconv.quantizer.quantize",
}
# What runs where there is no LLVM.
_WITHOUT_COMPILER = ("Library", "open")

# Functions of two axes take one and three as well: `conv3d` is another name of `conv2d`.
_ALIASES = {
    f"{name}{axes}d{end}": f"{name}2d{end}"
    for name in ("conv", "conv_transpose", "plan_conv", "plan_conv_transpose")
    for end in ("", "_backward")
    for axes in (1, 3)
} | dict.fromkeys(("ConvPlan", "TransposedPlan"), "LayerPlan")


def __getattr__(name: str) -> Any:
    if name in _ALIASES:
        return globals().get(_ALIASES[name]) or __getattr__(_ALIASES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'leanconv' has no attribute {name!r}")
    with no_collections():
        if name not in _WITHOUT_COMPILER:
            lazy_imports.module("leanconv.codegen.backend")  # first: says where memory is too short
        found = globals()[name] = lazy_imports.named(f"{_LAZY[name]}.{name}")  # once
    return found


def __dir__() -> list[str]:
    return [*__all__, *_ALIASES, "__version__"]
