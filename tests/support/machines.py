"""Machines that the tests can take this one for: its code, another one's caches and units.

Choices and bytes depend on the sizes of the caches, on the multiply-add units and on the vectors.
A test that holds on one machine only says so by naming a preset. With TEST_MACHINE=NAME in the
environment `leanconv.codegen.host.host()` describes the machine of that name, in the session and in
the processes that its tests start, and every test must pass. Nothing in `src` knows of this: the
module of the host is changed as it is imported.

A test that names its machines everywhere has the mark `presets`: it is the same test wherever it
runs, and is left out under TEST_MACHINE. While it runs, `host()` gives what loads code into this
process and nothing that decides; a test that asks for more fails.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from support import object_store

if TYPE_CHECKING:
    from leanconv.target import Target

VARIABLE = "TEST_MACHINE"
STARTUP = str(Path(__file__).parent / "startup")  # on PYTHONPATH, it describes the host
_HOST, _CODE = "leanconv.codegen.host", "leanconv.codegen.machine_code"
# By the preset that each begins with: what differs from it, bytes.
MACHINES: dict[str, dict[str, int]] = {
    # A virtual machine on a server of 2 sockets states the L3 of more cores than it has: a target
    # counts no more of it than its record of costs allows.
    "sapphirerapids": {"l3_bytes": 260 * 2**20},
    "haswell": {},  # 32-byte vectors, 16 registers, L2 of 256 KiB
    "znver4": {},  # one multiply-add of 64 bytes a cycle
}
_RUNS_ON = {"avx512": ("avx512",), "avx2": ("avx2", "avx512")}
_asked: list[str] | None = None  # of this machine, by a test that names its machines


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
    changes = {_HOST: _host_described if name else _host_watched}
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


def is_here(name: str) -> bool:
    """Whether this machine is that one: the tests are the same that run without a name."""
    from leanconv.codegen import host

    true: Target = host.host.__wrapped__()
    return not why_not(name) and described(name, true) == true


def has_vectors_of_this(name: str) -> bool:
    """Whether a machine has the instruction set of this one, and differs by what decides."""
    from leanconv.codegen import host
    from leanconv.target import preset

    return bool(host.host.__wrapped__().isa == preset(name).isa)


def described(name: str, true: Target) -> Target:
    """A machine's facts; code for the true one, cut to the machine's vectors if it is wider."""
    from leanconv.target import preset

    base = preset(name)
    if true.isa not in _RUNS_ON[base.isa]:
        return true
    same = base.isa == true.isa
    facts = {"l3_bytes": base.l3_bytes, **MACHINES[name]}
    facts["l3_bytes"] = base.costs.l3_found(facts["l3_bytes"])
    return replace(
        base,
        name="host",
        cpu=true.cpu if same else base.cpu,
        features=true.features if same else base.features,
        triple=true.triple,
        extensions=tuple(name for name in base.extensions if name in true.extensions),
        **facts,
    )


@contextlib.contextmanager
def presets_alone() -> Iterator[list[str]]:
    """Refuse what is asked of this machine meanwhile, and list it.

    Yields:
        The facts that were asked for: what decides, not what only loads code into this process.
    """
    global _asked
    _asked = asked = []
    begin = subprocess.Popen.__init__

    def begun(process: subprocess.Popen[bytes], *given: Any, **options: Any) -> None:
        asked.append("processes, which nobody watches")
        begin(process, *given, **options)

    subprocess.Popen.__init__ = begun  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        _asked, subprocess.Popen.__init__ = None, begin  # type: ignore[method-assign]


def describes_here(value: object) -> bool:
    """Whether a value is a target that describes this machine."""
    return hasattr(value, "isa") and getattr(value, "name", None) == "host"


class _Loader:
    """What loads code into this process, of the target that describes this machine."""

    def __init__(self, true: Target) -> None:
        self.cpu, self.features, self.triple = true.cpu, true.features, true.triple

    def __getattr__(self, name: str) -> object:
        if _asked is not None:
            _asked.append(name)
        raise AssertionError(
            f"`{name}` of this machine is asked for by a test that is marked `presets`: name a "
            f"preset there too, or remove the mark"
        )


def _host_watched(module: ModuleType) -> None:
    """Replace `host` by one that gives tests which name their machines nothing that decides."""
    found = module.host

    @functools.wraps(found.__wrapped__)
    def host() -> Target:
        return found() if _asked is None else _Loader(found())  # type: ignore[return-value]

    module.host = host


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
