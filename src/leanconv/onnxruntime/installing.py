"""`install()`: packages that import onnxruntime find leanconv's sessions."""

from __future__ import annotations

import logging
from importlib.machinery import ModuleSpec
from types import ModuleType

import leanconv.onnxruntime as ours
from leanconv.onnxruntime import exceptions, real

log = logging.getLogger(__name__)

# Modules of onnxruntime's that packages import or catch exceptions from.
_PARTS = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_pybind11_state",
    "capi.onnxruntime_inference_collection",
)


def install() -> None:
    """Have `import onnxruntime` find `leanconv.onnxruntime`, from now on in this process.

    Who has imported the real one before keeps it: call this first. A second call does nothing.
    """
    if not any(map(real.is_real, real.modules().values())) and real.modules():
        return
    if real.modules():
        log.warning(
            "onnxruntime was imported before install(); what imported it keeps it: call "
            "leanconv.onnxruntime.install() first"
        )
    real.replace(_modules())


def uninstall() -> None:
    """Undo `install`: `import onnxruntime` finds the real one, or nothing."""
    real.restore()


def _modules() -> dict[str, ModuleType]:
    names = {name: getattr(ours, name) for name in ours.__all__}
    names["__version__"] = ours.__version__
    whole = _module(real.NAME, names)
    result = {real.NAME: whole}
    names |= exceptions.NAMED
    for part in _PARTS:
        result[f"{real.NAME}.{part}"] = _module(f"{real.NAME}.{part}", names)
    for part in _PARTS:
        above, _, name = f"{real.NAME}.{part}".rpartition(".")
        setattr(result[above], name, result[f"{real.NAME}.{part}"])
    return result


def _module(name: str, held: dict[str, object]) -> ModuleType:
    """A module under one of onnxruntime's names. Other modules below it are not found."""
    module = ModuleType(name, "leanconv's sessions under onnxruntime's name.")
    module.__dict__.update(held, __leanconv__=True, __path__=[], __file__=ours.__file__)
    module.__spec__ = ModuleSpec(name, None, origin=ours.__file__, is_package=True)
    return module
