"""The real onnxruntime, where it is installed: also behind a name that is ours by then."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from leanconv.forks import importing

NAME = "onnxruntime"
_kept: dict[str, ModuleType] = {}  # its modules, while others stand under their names


def is_real(module: ModuleType) -> bool:
    """Whether it is a module of the real onnxruntime."""
    return not getattr(module, "__leanconv__", False)


def modules() -> dict[str, ModuleType]:
    """What stands under onnxruntime's names in `sys.modules`."""
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
