"""A plan of one layer that is computed as a network of few nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from leanconv.api.conv_arguments import Constants, check_output, fitting_array
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.options import NetworkOptions, PlanOptions
from leanconv.api.plan_cache import PlanCache
from leanconv.api.weight_changes import ConstantsCopy, KeptPlan, keep
from leanconv.errors import memory_reported
from leanconv.graph.convert import LAST_OPSET, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.planner.network_plan import NetworkPlan
from leanconv.progress import working
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.spec import ConvSpec
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import DType

_P = TypeVar("_P", bound="LayerPlan")


class LayerPlan(Unpicklable):
    """One layer, ready to run. Calls from several threads run in turn.

    Attributes:
        spec: what is computed.
    """

    @memory_reported("planning a convolution")
    def __init__(
        self, spec: ConvSpec | TransposedSpec, model: Model, options: PlanOptions, layer: str
    ) -> None:
        """Plan.

        Args:
            spec: what is computed.
            model: the network, of one input and one output.
            options: as of `plan_conv2d`.
            layer: the node that `options.algorithm` is for.
        """
        self.spec = spec
        y = model.output_dtypes[0]
        assert y is not None
        self._x, self._y = model.inputs[0].dtype, y
        chosen = {} if options.algorithm is None else {layer: options.algorithm}
        backend = CpuBackend(
            model,
            NetworkOptions(
                threads=options.threads,
                memory_limit=options.memory_limit,
                max_error=options.max_error,
                reproducible=options.reproducible,
                algorithms=chosen,
            ),
        )
        self._compiled = backend.compile((spec.input_shape,))

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Compute.

        Args:
            x: the input, of the planned shape and dtype; contiguous arrays are read in place.
            out: where to write y: contiguous, and no part of x; a new array if None.

        Returns:
            y.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        spec = self.spec
        x = fitting_array("x", x, spec.input_shape, self._x)
        if out is None:
            out = self._compiled.network.outputs.new_array(spec.output_shape, self._y)
        else:
            check_output(out, [x], spec)
        self._compiled.network.run([x.ctypes.data, out.ctypes.data])
        return out

    @property
    def plan(self) -> NetworkPlan:
        """What runs: steps, bytes, expected error."""
        return self._compiled.plan

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.plan.memory_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan, counted as they were."""
        return self._compiled.used_bytes

    @property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.plan.predicted_error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"

    def explain(self) -> str:
        """Say how it is computed, with its bytes."""
        return self._compiled.explain()


def run_kept(
    cache: PlanCache[KeptPlan[_P]],
    x: np.ndarray,
    key: tuple[Any, ...],
    constants: Constants,
    make: Callable[[], _P],
) -> np.ndarray:
    """Run the plan that is kept for weights at this address, or a new one where they differ."""
    key = (*key, constants.w.ctypes.data)
    kept = cache.take(key)  # removed, so that no other thread runs it meanwhile
    if kept is None or not kept.holds(constants):
        copied = ConstantsCopy(constants)  # before packing: the next call notices a change
        with working(str(key[0])):
            kept = KeptPlan(make(), copied)
    try:
        return kept.plan(x)
    finally:
        keep(cache, key, kept)


def layer_model(
    nodes: tuple[FileNode, ...],
    x: tuple[DType, tuple[int, ...]],
    y: tuple[DType, tuple[int, ...]],
    constants: Mapping[str, np.ndarray],
    dtype: DType,
) -> Model:
    """A network of few nodes from "x" to "y", as a file would have it.

    Args:
        nodes: in order.
        x, y: element type and shape of input and output.
        constants: by name.
        dtype: that the network's floats have.
    """
    return Model(
        inputs=(ModelInput("x", *x),),
        outputs=("y",),
        output_shapes=(y[1],),
        output_dtypes=(y[0],),
        opset=LAST_OPSET,
        nodes=nodes,
        constants=MappingProxyType({n: np.ascontiguousarray(a) for n, a in constants.items()}),
        dtype=dtype,
        bytes=sum(array.nbytes for array in constants.values()),
        limits=Limits(),
        metadata=MappingProxyType({}),
    )
