"""What tests of hostile model files share: small models, and bounds on time and memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv.api.load  # noqa: F401  else the first bounded call would import it
from leanconv.codegen import backend
from leanconv.errors import LeanConvError
from leanconv.graph.onnx_import import read_model
from support.onnx_models import model

MIB = 1 << 20


@contextmanager
def cpu_limit(seconds: float, what: str) -> Iterator[None]:
    """Fail what takes more CPU time, and stop it: a busy machine changes nothing, a hang ends.

    What waits without computing is stopped by pytest's own timeout.
    """

    late = f"{what} has not ended after {seconds:g} s of CPU time"
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        raise AssertionError(late)

    held = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, held)
    assert not stopped, late  # where the error was caught


class ResidentPeak:
    """The most memory that this process has had at once since a moment, as the kernel counts it.

    Counting is free, where tracing each block makes code several times slower; what is taken and
    never touched does not count.
    """

    _CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    @classmethod
    def is_known(cls) -> bool:
        """Whether this system counts it."""
        return os.access(cls._CLEAR, os.W_OK)

    @staticmethod
    def leave_out_llvm() -> None:
        """Have all pages of LLVM's own code, 100 MB, resident from now on, whoever calls it.

        They are given back whenever it has done its work, and would count where it works again.
        """
        assert backend.llvm
        segments = backend._constant_segments()
        backend._constant_segments = lambda: ()  # type: ignore[assignment]
        for start, size in segments:
            held = (ctypes.c_ubyte * size).from_address(start)
            np.frombuffer(held, np.uint8)[:: mmap.PAGESIZE].max()

    def begin(self) -> None:
        """The moment from which on memory counts."""
        self._CLEAR.write_text("5")  # the peak begins anew
        self._before = self._read("VmRSS")

    @property
    def bytes(self) -> int:
        """The peak, over what there was at that moment."""
        return self._read("VmHWM") - self._before

    def _read(self, key: str) -> int:
        lines = self._STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


@contextmanager
def bounded(seconds: float = 2.0, peak_bytes: int = 16 * MIB) -> Iterator[None]:
    """Fail when the body takes more CPU time or holds more memory at once."""
    tracemalloc.start()
    try:
        with cpu_limit(seconds, "this"):
            yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < peak_bytes, f"held {peak / MIB:.1f} MiB"


def refused(data: bytes, what: str, **bounds: Any) -> None:
    """Reading, or else binding, must raise an error that says `what`."""
    with bounded(**bounds), pytest.raises(LeanConvError, match=what):
        bound(data)


def bound(data: bytes) -> None:
    """Read a model and bind it, 2 standing for every extent that it leaves open."""
    found = read_model(data)
    found.bind(
        {
            each.name: tuple(n if isinstance(n, int) else 2 for n in each.shape or ())
            for each in found.inputs
        }
    )


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def network(
    nodes: list[onnx.NodeProto], held: dict[str, Any] | None = None, opset: int = 17
) -> bytes:
    return model(nodes, {"x": (1, 4, 8, 8)}, ["y"], held, opset).SerializeToString()


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def held(dims: list[int], data: bytes = b"", **fields: Any) -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=data)
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    proto = model([node("Conv", "x w")], {"x": (1, 4, 8, 8)}, ["y"])
    proto.graph.initializer.append(tensor)
    return proto.SerializeToString()
