"""ONNX's backend suite: its cases from the package onnx, and what becomes of one in leanconv."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test import loader
from onnx.backend.test.runner import Runner

import leanconv as lc
from leanconv.errors import LeanConvError
from leanconv.graph.convert import FILE_RULES

Arrays = Mapping[str, Any]
Compute = Callable[[onnx.ModelProto, Arrays], Arrays]
DataSets = Sequence[tuple[Sequence[Any], Sequence[Any]]]

RIGHT = "right"
CONSTANTS = "right with constants"  # shapes, axes and the like stand in the file
AS_ORT = "as onnxruntime"  # other than the standard, as onnxruntime is
REFUSED = "refused"
UNNAMED = "refused, unnamed"  # by a message that names no operator of the case
WRONG = "wrong"
OTHER = "other exception"
OUTCOMES = (RIGHT, CONSTANTS, AS_ORT, REFUSED, UNNAMED, WRONG, OTHER)
GOOD = (RIGHT, CONSTANTS, AS_ORT)

_DATA = Path(loader.DATA_DIR)
_KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
# What no message of a refusal is found by: a case may be refused for what it is made of.
# Where the suite's own result has rounding errors beyond its tolerance: of what is exactly 0, 2e-7.
_ROUNDED = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}
_OTHER_NAMES = ("sequence", "optional", "training", "sparse")


@dataclass(frozen=True)
class Case:
    """A case of the suite.

    Attributes:
        name: as the suite has it.
        kind: the suite's part: node, simple, pytorch-converted, pytorch-operator, real.
        rtol, atol: what the suite allows.
        made: model and data, where they are not read from files.
        folder: of model and data; of `real`, the light model's file.
    """

    name: str
    kind: str
    rtol: float
    atol: float
    made: tuple[onnx.ModelProto, DataSets] | None = None
    folder: Path | None = None

    def load(self) -> tuple[onnx.ModelProto, DataSets]:
        """The model, and (inputs, outputs) in the order of its graph."""
        if self.made is not None:
            return self.made
        assert self.folder is not None
        if self.folder.suffix == ".onnx":
            return _light(self.folder)
        model = onnx.load(self.folder / "model.onnx")
        sets = sorted(self.folder.glob("test_data_set_*"))
        graph = model.graph
        return model, [
            (_read(each, "input", graph.input), _read(each, "output", graph.output))
            for each in sets
        ]


@cache
def cases() -> Mapping[str, Case]:
    """All cases by name; making them takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of what the cases compute
        found = [(kind, each) for kind in _KINDS for each in loader.load_model_tests(kind=kind)]
    result = {}
    for kind, each in found:
        made, folder = None, None
        if each.model is not None:
            made = each.model, each.data_sets
        elif each.model_dir is not None:
            folder = Path(each.model_dir)
        else:
            folder = _DATA / "light" / Path(each.url).name
        atol = _ROUNDED.get(each.name, each.atol)
        result[each.name] = Case(each.name, kind, each.rtol, atol, made, folder)
    return dict(sorted(result.items()))


def _light(path: Path) -> tuple[onnx.ModelProto, DataSets]:
    """A known network whose weights are filled with numbers, and the suite's input for it."""
    model = onnx.load(path)
    held = {each.name for each in model.graph.initializer}
    inputs = [
        Runner.generate_dummy_data(each, name=path.stem)
        for each in model.graph.input
        if each.name not in held
    ]
    result = TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return model, [(inputs, [numpy_helper.to_array(result)])]


def _read(folder: Path, what: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    result: list[Any] = []
    for index, each in enumerate(declared):
        path = folder / f"{what}_{index}.pb"
        if not path.exists():
            break
        data = path.read_bytes()
        if each.type.HasField("sequence_type"):
            result.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif each.type.HasField("optional_type"):
            result.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            result.append(numpy_helper.to_array(TensorProto.FromString(data)))
    return result


def operators(model: onnx.ModelProto) -> set[str]:
    """All operators of a model, those inside of graphs and functions, too."""
    return {node.op_type for node in _nodes(model)}


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    open_nodes = [*model.graph.node, *(n for each in model.functions for n in each.node)]
    while open_nodes:
        node = open_nodes.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                open_nodes.extend(graph.node)


def compiled(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """What leanconv gives, by the outputs' names."""
    return lc.load(model, threads=1).run(inputs)


def with_constants(model: onnx.ModelProto, inputs: Arrays) -> tuple[onnx.ModelProto, Arrays]:
    """The model with all inputs in the file that cannot be computed at run time.

    The suite hands over whatever a node reads, also shapes and axes. Where that is all, there is
    an input that nothing reads.
    """
    flowing = set()
    for node in model.graph.node:
        rule = FILE_RULES.get(node.op_type)
        places = None if rule is None else rule.running
        flowing |= {n for i, n in enumerate(node.input) if places is None or i in places}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.input[:]
    given = {}
    for value in model.graph.input:
        array = inputs.get(value.name)
        if value.name in flowing or not isinstance(array, np.ndarray):
            made.graph.input.append(value)
            if array is not None:
                given[value.name] = array
        else:
            made.graph.initializer.append(numpy_helper.from_array(array, value.name))
    if not given:
        given["unread"] = np.ones(1, np.float32)
        made.graph.input.append(helper.make_tensor_value_info("unread", TensorProto.FLOAT, [1]))
    return made, given


def outcome(case: Case, compute: Compute = compiled) -> tuple[str, str]:
    """(one of `OUTCOMES`, what there is to say of it)."""
    try:
        model, data_sets = case.load()
        return _outcome(case, model, data_sets, compute)
    except Exception as error:  # whatever it is, it is told with the others
        return OTHER, f"{type(error).__name__}: {error}"


def _outcome(
    case: Case, model: onnx.ModelProto, data_sets: DataSets, compute: Compute
) -> tuple[str, str]:
    refusal = ""
    for held in (False, True):
        try:
            found = [_found(model, inputs, compute, held) for inputs, _ in data_sets]
        except LeanConvError as error:
            refusal = refusal or str(error)
            continue
        difference = _difference(case, found, [outputs for _, outputs in data_sets])
        if not difference:
            return CONSTANTS if held else RIGHT, refusal
        theirs = _by_onnxruntime(model, data_sets)
        as_theirs = theirs is not None and not _difference(case, found, theirs)
        return AS_ORT if as_theirs else WRONG, difference
    return REFUSED if _names(refusal, model) else UNNAMED, refusal


def _found(
    model: onnx.ModelProto, inputs: Sequence[Any], compute: Compute, held: bool
) -> list[Any]:
    initialised = {each.name for each in model.graph.initializer}
    taken = [each.name for each in model.graph.input if each.name not in initialised]
    given = {n: _plain(x) for n, x in zip(taken, inputs, strict=False) if x is not None}
    if held:
        model, given = with_constants(model, given)
    results = compute(model, given)
    return [results[each.name] for each in model.graph.output]


def _difference(case: Case, found: Sequence[Any], expected: Sequence[Any]) -> str:
    try:
        for ours, theirs in zip(found, expected, strict=True):
            Runner.assert_similar_outputs(list(map(_plain, theirs)), ours, case.rtol, case.atol)
    except (AssertionError, TypeError, ValueError) as error:
        return " ".join(str(error).split()) or "differs"
    return ""


def _plain(value: Any) -> Any:
    """An array of what the suite gives: a tensor of the file format, or a number of NumPy's."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _by_onnxruntime(model: onnx.ModelProto, data_sets: DataSets) -> list[list[Any]] | None:
    """What onnxruntime gives; None where it gives nothing."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        taken = [each.name for each in session.get_inputs()]
        return [
            session.run(None, dict(zip(taken, map(_plain, inputs), strict=True)))
            for inputs, _ in data_sets
        ]
    except Exception:  # it lacks something, too
        return None


def _names(refusal: str, model: onnx.ModelProto) -> bool:
    """Whether a refusal names an operator of the model, or a kind of value that it is made of."""
    words = set(refusal.replace("'", " ").replace('"', " ").replace(",", " ").split())
    words |= {word.strip(".:;()[]") for word in words}
    return bool(words & operators(model)) or any(each in refusal for each in _OTHER_NAMES)


def known(path: Path) -> dict[str, str]:
    """Names of the cases that are right, and how, from a file of `name` or `name: how`."""
    result = {}
    for line in path.read_text("utf-8").splitlines():
        name, _, how = line.partition(": ")
        if name and not name.startswith("#"):
            result[name] = how or RIGHT
    return result
