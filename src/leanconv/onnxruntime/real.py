"""The real onnxruntime, where it is installed, and `install()`, which puts ours under its name."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from leanconv.forks import importing
from leanconv.onnxruntime.exceptions import NAMED

NAME = "onnxruntime"
_kept: dict[str, ModuleType] = {}  # its modules, while others stand under their names
log = logging.getLogger(__name__)
# Modules of onnxruntime's that packages import or catch exceptions from.
_PARTS = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_pybind11_state",
    "capi.onnxruntime_inference_collection",
)


def is_real(module: ModuleType) -> bool:
    """Return whether a module is one of the real onnxruntime."""
    return not getattr(module, "__leanconv__", False)


def modules() -> dict[str, ModuleType]:
    """Return the modules in `sys.modules` that have onnxruntime's names."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name == NAME or name.startswith(f"{NAME}.")
    }


def replace(others: dict[str, ModuleType]) -> None:
    """Put other modules under onnxruntime's names, and keep the real ones."""
    with importing():
        _replace(others)


def real() -> Any | None:
    """The real onnxruntime; None where it is not installed, or does not load."""
    with importing():
        found = _kept.get(NAME) or sys.modules.get(NAME)
        if found is not None and is_real(found):
            return found
        before = modules()
        _replace({})
        try:
            return import_module(NAME)
        except (ImportError, OSError):
            return None
        finally:
            _replace(before)


def _replace(others: dict[str, ModuleType]) -> None:
    before = modules()
    _kept.update({name: module for name, module in before.items() if is_real(module)})
    for name in before:
        del sys.modules[name]
    sys.modules.update(others)


def restore() -> None:
    """Put the real modules back under their names, those that were imported."""
    with importing():
        _replace(dict(_kept))
        _kept.clear()


def install(names: Mapping[str, object], file: str) -> None:
    """Have `import onnxruntime` find these names; where it does already, nothing.

    Args:
        names: the attributes of the module.
        file: that it comes from.
    """
    before = modules().values()
    if before and not any(map(is_real, before)):
        return
    if before:
        log.warning(
            "onnxruntime was imported before install(); what imported it keeps it: call "
            "leanconv.onnxruntime.install() first"
        )
    replace(_modules(names, file))


def _modules(names: Mapping[str, object], file: str) -> dict[str, ModuleType]:
    result = {NAME: _module(NAME, names, file)}
    inner = {**names, **NAMED}
    for part in _PARTS:
        result[f"{NAME}.{part}"] = _module(f"{NAME}.{part}", inner, file)
    for part in _PARTS:
        above, _, name = f"{NAME}.{part}".rpartition(".")
        setattr(result[above], name, result[f"{NAME}.{part}"])
    return result


def _module(name: str, held: Mapping[str, object], file: str) -> ModuleType:
    """A module under one of onnxruntime's names. Other modules below it are not found."""
    module = ModuleType(name, "leanconv's sessions under onnxruntime's name.")
    module.__dict__.update(held, __leanconv__=True, __path__=[], __file__=file)
    module.__spec__ = ModuleSpec(name, None, origin=file, is_package=True)
    return module
