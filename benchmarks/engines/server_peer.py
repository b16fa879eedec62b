"""ONNX Runtime in the place of leanconv's plans behind leanconv's server, for `serving.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

from leanconv.api.inputs import input_specs, output_specs
from leanconv.graph.ir import TensorType
from leanconv.graph.onnx_import import read_model
from leanconv.server.models import Models, ServedModel, Source
from leanconv.server.plans import Group, Plans, Wanted
from leanconv.types import FLOAT32


class PeerPlans(Plans):
    """One session, for batches of any size up to `batch`; nothing is planned."""

    def __init__(self, path: str, threads: int, batch: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        model = read_model(Path(path))
        self.inputs, self.outputs = input_specs(model, FLOAT32), output_specs(model, FLOAT32)
        names = [each.name for each in self._session.get_outputs()]
        shapes = [
            tuple(e if isinstance(e, int) else 1 for e in each.shape)
            for each in self._session.get_outputs()
        ]
        types = dict(zip(names, (TensorType(s, FLOAT32) for s in shapes), strict=True))
        plan: Any = SimpleNamespace(plan=SimpleNamespace(outputs=types, inputs={}))
        sizes = tuple(range(1, batch + 1))
        self._group = Group(sizes, dict.fromkeys(sizes, plan), batched=batch > 1)

    @property
    def held_bytes(self) -> int:
        """Not known."""
        return 0

    def wanted(self, arrays: Sequence[np.ndarray]) -> Wanted:
        """What any arrays need."""
        shapes = tuple((1, *array.shape[1:]) for array in arrays)
        return Wanted((shapes,), shapes, {}, arrays[0].shape[0], batched=True)

    def found(self, key: object) -> Group:
        """The one group."""
        return self._group

    def groups(self) -> list[Any]:
        """None that a page could show."""
        return []

    def run(self, group: Group, size: int, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The outputs of a batch."""
        given = {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}
        found: list[np.ndarray] = self._session.run(None, given)
        return found


def models_of(path: str, threads: int, batch: int) -> Models:
    """The one model of a server."""
    source = Source("model", "1", Path(path))
    return Models([ServedModel(source, PeerPlans(path, threads, batch))])
