"""ONNX's own tests of single operations: each is computed, or called unsupported with a reason."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as backend
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.errors import UnsupportedError
from leanconv.graph.convert import RULES
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing, verify
from support.onnx_models import agree, interpreted

Arrays = Mapping[str, np.ndarray]

# Where the standard's tests scale by what the resized length would be if it were no integer. ONNX
# Runtime and PyTorch, and so do we, map the corners of the images that there are.
_CORNERS = (
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
)

# Operations between types, of which every case is computed, but for those in half precision.
_TYPED = frozenset(
    (
        *("And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Equal", "Floor", "Greater"),
        *(
            "GreaterOrEqual",
            "IsInf",
            "IsNaN",
            "Less",
            "LessOrEqual",
            "Max",
            "MaxPool",
            "Min",
            "Mod",
            "Not",
        ),
        *("Or", "Round", "Sign", "TopK", "Where", "Xor"),
    )
)


def cases() -> Iterator[tuple[str, onnx.ModelProto, Sequence[Any], Sequence[Any]]]:
    """(name, model, inputs, outputs) of the operations that are imported, and of functions.

    Only their modules are run: making all cases of the standard takes twice as long.
    """
    known = {op.lower() for op in RULES} | {"rangeop"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of what the cases compute
        for module in pkgutil.iter_modules(backend.__path__):
            if module.name.replace("_", "") in known:
                importlib.import_module(f"{backend.__name__}.{module.name}")
    for case in backend._NodeTestCases:
        nodes = case.model.graph.node
        if all(node.op_type in RULES and not node.domain for node in nodes):
            yield case.name, case.model, *case.data_sets[0]


def with_constants(model: onnx.ModelProto, inputs: Arrays) -> tuple[onnx.ModelProto, Arrays]:
    """The model with all inputs in the file that cannot be computed at run time.

    ONNX's tests hand over whatever a node reads, also shapes and axes. Where that is all, there is
    an input that nothing reads.
    """
    flowing = set()
    for node in model.graph.node:
        places = RULES[node.op_type].running
        flowing |= {n for i, n in enumerate(node.input) if places is None or i in places}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.input[:]
    given = {}
    for value in model.graph.input:
        array = inputs[value.name]
        if value.name in flowing:
            made.graph.input.append(value)
            given[value.name] = array
        else:
            made.graph.initializer.append(numpy_helper.from_array(array, value.name))
    if not given:
        given["unread"] = np.ones(1, np.float32)
        made.graph.input.append(helper.make_tensor_value_info("unread", TensorProto.FLOAT, [1]))
    return made, given


def imported(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    read = read_model(model.SerializeToString())
    graph = read.bind({n: a.shape for n, a in inputs.items()})
    return interpreted(check_flowing(run_passes(verify(graph))), inputs)


def compiled(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    return lc.load(model, threads=1).run(inputs)


def only_read(model: onnx.ModelProto, _: Arrays) -> None:
    read_model(model.SerializeToString())


def compared(found: Arrays, expected: Sequence[np.ndarray]) -> None:
    for array, wanted in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=1e-6)
        assert array.dtype == np.asarray(wanted).dtype


def outcome(run: Any, model: onnx.ModelProto, inputs: Arrays, expected: Any = None) -> str:
    """`ok`, `unsupported`, or what went wrong."""
    try:
        found = run(model, inputs)
        if expected is not None:
            compared(found, expected)
    except UnsupportedError as error:
        return "unsupported" if "expected" in str(error) else f"without advice: {error}"
    except Exception as error:  # whatever it is, it is told with the others
        return f"{type(error).__name__}: {error}"
    return "ok"


def test_onnx_own_tests_are_computed_or_called_unsupported() -> None:
    outcomes: dict[str, str] = {}
    typed: list[str] = []
    on_data = 0  # cases that are computed with every input given at run time
    compiled_ops: set[tuple[str, ...]] = set()
    for name, model, inputs, expected in cases():
        if any(not isinstance(each, np.ndarray) for each in (*inputs, *expected)):
            outcomes[name] = outcome(only_read, model, {})  # of dtypes that NumPy lacks
            continue
        arrays = {v.name: a for v, a in zip(model.graph.input, inputs, strict=True)}
        as_given = outcome(imported, model, arrays, None if name in _CORNERS else expected)
        assert as_given in ("ok", "unsupported"), (name, as_given)
        on_data += as_given == "ok"
        held, given = with_constants(model, arrays)
        if name in _CORNERS:
            agree(held, given)
            continue
        outcomes[name] = outcome(imported, held, given, expected)
        ops = {node.op_type for node in model.graph.node}
        kinds = {str(array.dtype) for array in (*given.values(), *expected)}
        if ops <= _TYPED and not {"float16", "object"} & kinds:
            typed.append(name)
        forms = {(op, *(sorted(kinds) if op in _TYPED else ())) for op in ops}
        if outcomes[name] == "ok" and not forms <= compiled_ops:
            compiled_ops |= forms
            outcomes[name] = outcome(compiled, held, given, expected)
    wrong = {name: what for name, what in outcomes.items() if what not in ("ok", "unsupported")}
    assert not wrong
    assert len({op for op, *_ in compiled_ops}) > 90
    assert {name: outcomes[name] for name in typed if outcomes[name] != "ok"} == {}
    assert len(typed) > 160
    assert on_data > 490
    assert [outcomes[name] for name in ("test_if", "test_loop11")] == ["ok", "ok"]
    assert list(outcomes.values()).count("ok") > 680
