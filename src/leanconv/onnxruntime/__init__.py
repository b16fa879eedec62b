"""The part of onnxruntime's Python API that packages use, on leanconv.

    import leanconv.onnxruntime as ort
    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

`install()` has packages find it that import onnxruntime themselves.
"""

from __future__ import annotations

import logging as _logging

from leanconv.onnxruntime import engines as _engines
from leanconv.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    get_all_providers,
    get_available_providers,
)
from leanconv.onnxruntime.session import InferenceSession
from leanconv.onnxruntime.values import IOBinding, ModelMetadata, NodeArg, OrtDevice, OrtValue

__version__ = "1.22.0"  # the interface's: packages compare it with the oldest that they take

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "install",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "uninstall",
]

# Severities of onnxruntime's: verbose, information, warning, error, fatal.
_LEVELS = (
    _logging.DEBUG,
    _logging.INFO,
    _logging.WARNING,
    _logging.ERROR,
    _logging.CRITICAL,
)


def get_device() -> str:
    """Return the device of sessions."""
    return "CPU"


def get_version_string() -> str:
    """The version of the interface."""
    return __version__


def get_build_info() -> str:
    """Return the name and version of this package."""
    import leanconv

    return f"leanconv {leanconv.__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Say from which severity on leanconv logs: 0 verbose, 1 information, 2 warnings, 3, 4."""
    level = _LEVELS[min(max(int(severity), 0), len(_LEVELS) - 1)]
    _logging.getLogger("leanconv").setLevel(level)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: leanconv has one verbosity."""


def set_seed(seed: int) -> None:
    """Do nothing: leanconv computes no operators of random numbers."""


def disable_telemetry_events() -> None:
    """Do nothing: leanconv sends nothing."""


def enable_telemetry_events() -> None:
    """Do nothing: leanconv sends nothing."""


def preload_dlls(*_: object, **__: object) -> None:
    """Do nothing: leanconv loads a GPU's libraries when a network is put there."""


def install() -> None:
    """Have `import onnxruntime` find this module, from now on in this process.

    Who has imported the real one before keeps it: call this first. A second call does nothing.
    """
    names = {name: globals()[name] for name in (*__all__, "__version__")}
    _engines.install(names, __file__)


def uninstall() -> None:
    """Undo `install`: `import onnxruntime` finds the real one, or nothing."""
    _engines.restore()
