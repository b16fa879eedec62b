"""A model for KServe: `leanconv.kserve.LeanConvModel("digits", "digits.onnx")`.

KServe has its own server; what it calls is here, with leanconv's plans behind it. It needs the
package `kserve`, which is none of leanconv's extras: the images of KServe have it.
"""

from __future__ import annotations

import os
from typing import Any

try:
    from kserve import InferOutput, InferRequest, InferResponse, Model
    from kserve.errors import InvalidInput
except ImportError as error:
    from leanconv.errors import MissingExtraError

    raise MissingExtraError(
        f"leanconv.kserve needs the package kserve ({error}): pip install kserve"
    ) from error

import numpy as np

import leanconv
from leanconv.errors import InputError, LeanConvError, UnsupportedError
from leanconv.server.protocol import check_types, datatype
from leanconv.types import BFLOAT16


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
            UnsupportedError: an input or output is of a type that the protocol or KServe lacks.
        """
        network = leanconv.load(self._path, **self._options)
        ports = (*network.inputs, *network.outputs)
        check_types(ports)
        for spec in ports:
            if spec.dtype == BFLOAT16:
                raise UnsupportedError(
                    f"{spec.name!r} is of bfloat16, for which KServe has no arrays; expected "
                    "another type: add a Cast to the file"
                )
        self._network = network
        self.ready = True
        return True

    def predict(
        self, payload: InferRequest, headers: Any = None, response_headers: Any = None
    ) -> InferResponse:
        """The outputs for a request of the Open Inference Protocol, over REST or gRPC.

        Raises:
            InputError: `load` was not called.
            InvalidInput: the network does not take the inputs.
        """
        if self._network is None:
            raise InputError(f"the model {self.name!r} is not loaded; call load() first")
        try:
            found = self._network.run(
                {each.name: np.ascontiguousarray(each.as_numpy()) for each in payload.inputs}
            )
        except (LeanConvError, ValueError) as error:  # of data that are too few for their shape
            raise InvalidInput(str(error)) from error
        outputs = []
        for spec in self._network.outputs:
            array = found[spec.name]
            output = InferOutput(spec.name, list(array.shape), datatype(spec, array))
            output.set_data_from_numpy(array)  # raw; KServe makes text of it where that is asked
            outputs.append(output)
        return InferResponse(
            payload.id,
            self.name,
            outputs,
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )
