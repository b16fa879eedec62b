"""leanconv: a convolution compiler in pure Python.

One convolution, or a whole network, NumPy arrays in and out:

    import leanconv as lc
    y = lc.conv2d(x, w, bias, stride=2, padding=1, activation="relu6")
    net = lc.load("model.onnx")
    y = net(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leanconv.errors import (
    BudgetError,
    CompileError,
    DeviceError,
    InputError,
    LeanConvError,
    MissingExtraError,
    ModelError,
    SpecError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from leanconv.api.conv import ConvPlan, plan_conv2d
    from leanconv.api.convolve import conv2d
    from leanconv.api.network import Network, load

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "CompileError",
    "ConvPlan",
    "DeviceError",
    "InputError",
    "LeanConvError",
    "MissingExtraError",
    "ModelError",
    "Network",
    "SpecError",
    "UnsupportedError",
    "conv2d",
    "load",
    "plan_conv2d",
]

# Imported on first use: `import leanconv` alone loads neither the compiler nor ONNX.
_LAZY = {
    "ConvPlan": "leanconv.api.conv",
    "conv2d": "leanconv.api.convolve",
    "plan_conv2d": "leanconv.api.conv",
    "Network": "leanconv.api.network",
    "load": "leanconv.api.network",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'leanconv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
