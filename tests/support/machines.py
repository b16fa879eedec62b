"""Machines that the tests can take this one for: its code, another one's caches and units.

Choices and bytes depend on the sizes of the caches, on the multiply-add units and on the vectors.
A test that holds on one machine only says so by naming a preset. With TEST_MACHINE=NAME in the
environment `leanconv.codegen.host.host()` describes the machine of that name, in the session and in
the processes that its tests start, and every test must pass. Nothing in `src` knows of this: the
module of the host is changed as it is imported.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from support import object_store

if TYPE_CHECKING:
    from leanconv.target import Target

VARIABLE = "TEST_MACHINE"
STARTUP = str(Path(__file__).parent / "startup")  # on PYTHONPATH, it describes the host
_HOST, _CODE = "leanconv.codegen.host", "leanconv.codegen.machine_code"
# By the preset that each begins with: what differs from it, bytes.
MACHINES: dict[str, dict[str, int]] = {
    # A virtual machine on a server of 2 sockets states the L3 of more cores than it has.
    "sapphirerapids": {"l3_bytes": 260 * 2**20},
    "haswell": {},  # 32-byte vectors, 16 registers, L2 of 256 KiB
    "znver4": {},  # one multiply-add of 64 bytes a cycle
}
_RUNS_ON = {"avx512": ("avx512",), "avx2": ("avx2", "avx512")}


def describe_host() -> str | None:
    """Take this process, and those that it starts, for the machine that the environment names.

    Returns:
        The machine's name, or None where the environment names none.

    Raises:
        LookupError: there is no machine of that name; the message lists those that exist.
    """
    name = os.environ.get(VARIABLE)
    if name and name not in MACHINES:
        known = ", ".join(MACHINES)
        raise LookupError(f"{VARIABLE} is {name!r}; expected one of {known}, or unset it")
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return name or None
    changes = {_HOST: _host_described} if name else {}
    folder = object_store.chosen_folder()
    if folder is not None:
        changes[_CODE] = functools.partial(object_store.install, folder=folder)
    assert not changes.keys() & sys.modules.keys(), "others may hold the unchanged module already"
    sys.meta_path.insert(0, _Finder(changes))
    if not name:
        return None
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *(p for p in paths if p != STARTUP)])
    return name


def why_not(name: str) -> str:
    """Why this machine cannot run the code of another, or "" if it can."""
    from leanconv.codegen import host
    from leanconv.target import preset

    true, wanted = host.host.__wrapped__(), preset(name)
    same = wanted.triple.split("-")[0] == true.triple.split("-")[0]
    if same and true.isa in _RUNS_ON.get(wanted.isa, ()):
        return ""
    return f"{true.cpu} ({true.isa}) cannot run code for {name} ({wanted.isa})"


def described(name: str, true: Target) -> Target:
    """A machine's facts; code for the true one, cut to the machine's vectors if it is wider."""
    from leanconv.target import preset

    base = preset(name)
    if true.isa not in _RUNS_ON[base.isa]:
        return true
    same = base.isa == true.isa
    return replace(
        base,
        name="host",
        cpu=true.cpu if same else base.cpu,
        features=true.features if same else base.features,
        triple=true.triple,
        extensions=tuple(name for name in base.extensions if name in true.extensions),
        **MACHINES[name],
    )


def _host_described(module: ModuleType) -> None:
    """Replace `host` by one that describes the machine."""
    true, name = module.host.__wrapped__, os.environ[VARIABLE]

    @functools.cache
    @functools.wraps(true)
    def host() -> Target:
        return described(name, true())

    host.__wrapped__ = true
    module.host = host


class _Finder(importlib.abc.MetaPathFinder):
    """Finds some modules, and changes them once they are loaded."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.pop(fullname, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loaded = spec.loader.exec_module

            def execute(module: ModuleType) -> None:
                loaded(module)
                change(module)

            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec
