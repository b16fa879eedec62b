"""`leanconv.open`: a network that `leanconv.compile` wrote as a library, run without the compiler.

Neither LLVM nor the planner is loaded: NumPy, ctypes, and the checks of inputs that `load`'s
networks have.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leanconv.api.called_by_name import CalledByName
from leanconv.api.inputs import InputSpec, validated_input
from leanconv.errors import DeviceError, InputError, memory_reported
from leanconv.files import elf_segments, open_regular, reason
from leanconv.graph.narrow_codes import given
from leanconv.graph.network_inputs import Names
from leanconv.runtime.shared_library import SharedLibrary
from leanconv.types import named_dtype

_FILES = re.compile(r"(.*)\.(so(\.\d+)*|dylib)")
_DESCRIPTION_BYTES = 1 << 26
_MEND = "expected a library as leanconv.compile writes it"


class Library(CalledByName):
    """A compiled network, called as those of `leanconv.load` are.

    Its shapes are those that it was compiled for. Calls from several Python threads are allowed;
    they run in turn, each in as many threads as it was compiled for. Opened once more it has memory
    of its own and can run at the same time; weights are in memory once. A forked process can use
    the libraries of its parent. A run is one call of the library: an interrupt waits for its end.
    Copied or pickled it is its path, and is opened anew.

    Attributes:
        inputs, outputs: each has a `name`, a `shape` and a `dtype`; of several shapes, None stands
            for the extents in which they differ.
        facts: what the library says of itself, as in the `.json` beside it: target, bytes, steps.
    """

    def __init__(self, path: Path, code: SharedLibrary) -> None:
        self.inputs, self.outputs = (_specs(code.runs, ports) for ports in ("inputs", "outputs"))
        super().__init__(
            Names(tuple(s.name for s in self.inputs), tuple(s.name for s in self.outputs))
        )
        self.facts: dict[str, Any] = code.facts
        self._path, self._code = path, code

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<Library {str(self._path)!r}: {takes} -> {gives}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy opens the file again; sent elsewhere, the file has to be there."""
        return open, (self._path, self.facts["name"])

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        pairs = zip(arrays, self.inputs, strict=True)
        found = self.computed([validated_input(array, spec) for array, spec in pairs])
        pairs = zip(found, self.outputs, strict=True)
        return [y if s.dtype.held == s.dtype else given(y, s.dtype) for y, s in pairs]

    @memory_reported("running a library")
    def computed(self, arrays: Sequence[Any]) -> list[Any]:
        """All outputs for validated arrays, of the types that memory has.

        Raises:
            InputError: the network refuses their values, or it is closed.
        """
        try:
            return self._code.computed(arrays)
        except ValueError as error:
            raise InputError(str(error)) from error

    def close(self) -> None:
        """End its threads and give its memory back; the code stays until the process ends."""
        self._code.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _specs(runs: Sequence[Mapping[str, Any]], ports: str) -> tuple[InputSpec, ...]:
    """Return the specs of inputs or outputs, open where they differ in the shapes of `runs`."""
    found = []
    for described in zip(*(run[ports] for run in runs), strict=True):
        first, shape = described[0], None
        if len({len(each["shape"]) for each in described}) == 1:
            axes = zip(*(map(int, each["shape"]) for each in described), strict=True)
            shape = tuple(each[0] if len({*each}) == 1 else None for each in axes)
        kind = named_dtype(first.get("codes") or first["dtype"])
        found.append(InputSpec(first["name"], shape, kind))
    return tuple(found)


def is_library(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name is that of a shared library."""
    return _FILES.fullmatch(Path(path).name) is not None


@memory_reported("opening a library")
def open(path: str | os.PathLike[str], name: str | None = None) -> Library:  # noqa: A001
    """Open a network that `compile` wrote as a library; LLVM and the planner are not needed.

    The library's code becomes a part of this process: open only what you trust.

    Args:
        path: of the `.so` (`.dylib` on macOS).
        name: the prefix of its functions; None for what the file's name says, `net` of
            `libnet.so`, or else the `.json` beside it.

    Returns:
        The network.

    Raises:
        InputError: the file is no such library, damaged, or for another system.
        DeviceError: it needs instructions that this processor lacks.
    """
    place = Path(path)
    _refuse_unsound(place)
    names = [name] if name else list(dict.fromkeys(_names(place)))
    for each in names:
        try:
            return Library(place, SharedLibrary(place, each))
        except AttributeError:
            continue
        except RuntimeError as error:
            raise DeviceError(str(error)) from error
        except OSError as error:
            raise InputError(f"library {str(path)!r} cannot be loaded: {error}") from error
        except (ValueError, TypeError, LookupError) as error:
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"{str(path)!r} describes itself wrongly ({what}); {_MEND}") from error
    functions = " or ".join(f"{each}_run" for each in names)
    mend = "" if name else ": give name= where the file was renamed"
    raise InputError(f"library {str(path)!r} has no function {functions}; {_MEND}{mend}")


def _names(path: Path) -> Iterator[str]:
    """Prefixes that a library's functions may have."""
    found = _FILES.fullmatch(path.name)
    stem = found[1] if found else path.stem
    yield stem.removeprefix("lib")
    try:
        with open_regular(path.with_name(f"{stem}.json"), _DESCRIPTION_BYTES) as file:
            yield str(json.load(file)["name"])
    except (OSError, ValueError, KeyError, TypeError):
        pass


def _refuse_unsound(path: Path) -> None:
    """Refuse what the system's loader would not survive, or would say nothing useful of.

    Raises:
        InputError: the file cannot be read, is no library, is cut short, or is another system's.
    """
    shown = f"library {str(path)!r}"
    try:
        with open_regular(path, what="library") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(20)
            file.seek(0)
            if not sys.platform.startswith("linux"):
                return
            segments = elf_segments(file)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {reason(error)}") from error
    except (ValueError, struct.error) as error:
        raise InputError(f"{shown} is no shared library, or damaged; {_MEND}") from error
    if not segments:
        raise InputError(
            f"{shown} is an object, for a linker; expected a shared library: compile the network "
            "with out='libnet.so'"
        )
    if any(offset + held > size for _, _, offset, _, _, held, *_ in segments):
        raise InputError(f"{shown} is cut short, with {size} bytes; copy it again")
    with open_regular("/proc/self/exe") as file:
        own = file.read(20)
    if (head[4:6], head[18:20]) != (own[4:6], own[18:20]):
        raise InputError(f"{shown} is for another processor than this process's; {_MEND} for it")
