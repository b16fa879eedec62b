"""`install()`: packages that import onnxruntime find leanconv's sessions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from leanconv.onnxruntime import exceptions, real

log = logging.getLogger(__name__)

# Modules of onnxruntime's that packages import or catch exceptions from.
_PARTS = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_pybind11_state",
    "capi.onnxruntime_inference_collection",
)


def install(names: Mapping[str, object], file: str) -> None:
    """Have `import onnxruntime` find these names; where it does already, nothing.

    Args:
        names: what the module holds.
        file: that it comes from.
    """
    before = real.modules().values()
    if before and not any(map(real.is_real, before)):
        return
    if before:
        log.warning(
            "onnxruntime was imported before install(); what imported it keeps it: call "
            "leanconv.onnxruntime.install() first"
        )
    real.replace(_modules(names, file))


def _modules(names: Mapping[str, object], file: str) -> dict[str, ModuleType]:
    result = {real.NAME: _module(real.NAME, names, file)}
    inner = {**names, **exceptions.NAMED}
    for part in _PARTS:
        result[f"{real.NAME}.{part}"] = _module(f"{real.NAME}.{part}", inner, file)
    for part in _PARTS:
        above, _, name = f"{real.NAME}.{part}".rpartition(".")
        setattr(result[above], name, result[f"{real.NAME}.{part}"])
    return result


def _module(name: str, held: Mapping[str, object], file: str) -> ModuleType:
    """A module under one of onnxruntime's names. Other modules below it are not found."""
    module = ModuleType(name, "leanconv's sessions under onnxruntime's name.")
    module.__dict__.update(held, __leanconv__=True, __path__=[], __file__=file)
    module.__spec__ = ModuleSpec(name, None, origin=file, is_package=True)
    return module
