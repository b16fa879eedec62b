"""A model for KServe: `leanconv.kserve.LeanConvModel("digits", "digits.onnx")`.

KServe has its own server; what it calls is here, with leanconv's plans behind it. It needs the
package `kserve`, which is none of leanconv's extras: the images of KServe have it.
"""

from __future__ import annotations

import os
from typing import Any

try:
    from kserve import InferOutput, InferRequest, InferResponse, Model
except ImportError as error:
    from leanconv.errors import MissingExtraError

    raise MissingExtraError(
        f"leanconv.kserve needs the package kserve ({error}): pip install kserve"
    ) from error

import numpy as np

import leanconv
from leanconv.errors import InputError
from leanconv.server.datatypes import NAMES
from leanconv.server.ports import check_types


class LeanConvModel(Model):
    """A network that KServe serves.

    Args:
        name: under which it is served.
        path: of the ONNX file.
        options: of `leanconv.load`, such as `memory_limit="64 MiB"`.
    """

    def __init__(self, name: str, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(name)
        self._path, self._options = path, {"reproducible": True, **options}
        self._network: leanconv.Network | None = None

    def load(self) -> bool:
        """Read and plan the network; KServe calls it before the first request.

        Raises:
            UnsupportedError: an input or output is of a type that the protocol lacks.
        """
        network = leanconv.load(self._path, **self._options)
        check_types((*network.inputs, *network.outputs))
        self._network = network
        self.ready = True
        return True

    def predict(
        self, payload: InferRequest, headers: Any = None, response_headers: Any = None
    ) -> InferResponse:
        """The outputs for a request of the Open Inference Protocol.

        Raises:
            InputError: the network does not take the inputs.
        """
        if self._network is None:
            raise InputError(f"the model {self.name!r} is not loaded; call load() first")
        given = {tensor.name: np.ascontiguousarray(tensor.as_numpy()) for tensor in payload.inputs}
        found = self._network.run(given)
        outputs = []
        for spec in self._network.outputs:
            array = found[spec.name]
            output = InferOutput(spec.name, list(array.shape), NAMES[spec.dtype])
            output.set_data_from_numpy(array, binary_data=False)
            outputs.append(output)
        return InferResponse(payload.id, self.name, outputs)
