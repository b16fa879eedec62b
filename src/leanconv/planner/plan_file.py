"""A network's plan as a JSON file: read without tuning, compared line by line, never trusted."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from leanconv.canonical import canonical_text
from leanconv.errors import InputError, SpecError, short
from leanconv.files import open_regular, read_whole, reason
from leanconv.graph.ir import Graph
from leanconv.operators import OPERATORS
from leanconv.planner.arena import Lifetime, PlacedBuffers
from leanconv.planner.decisions import Decision
from leanconv.records import dataclass
from leanconv.settings import MOST_THREADS
from leanconv.spec import Format
from leanconv.target import Target
from leanconv.types import FLOATS, HALVES, DType, as_dtype
from leanconv.units import MOST_BYTES as MOST_LIMIT

FORMAT, VERSION = "leanconv plan", 2
# The keys of version 1 that have other names now.
_OLD_KEYS = {"asked": "options", "promised": "predicted", "way": "choice"}
MOST_BYTES = 32 * 2**20  # of a file; a plan of 1000 layers has 1 MiB
_MOST_NODES = 100_000
_MOST_TEXT = 4096  # characters of a name
_MOST_NUMBER = 2**62


@dataclass(frozen=True)
class PlannedNode:
    """A node in a plan file: its decision, and its expected costs.

    Attributes:
        output: the value that it defines, which identifies it.
        reads: format of each image that it reads, by name.
        writes: format of its output.
        choice_text: the choice as text, None where there is only one.
        kernels: digest of the kernels' descriptions, which changes when their code does.
    """

    name: str
    op: str
    output: str
    reads: Mapping[str, Format]
    writes: Format
    choice_text: str | None
    algorithm: str
    weight_bytes: int
    time_ns: int
    error: float
    kernels: str

    @property
    def decision(self) -> Decision:
        """The formats and the choice with which the node is lowered.

        Raises:
            SpecError: its choice is none of the operation's.
        """
        if self.op not in OPERATORS:
            raise SpecError(f"node {self.name!r}: no kernel for {self.op}")
        choice = OPERATORS[self.op].choice_named(self.choice_text or "")
        return Decision(self.reads, self.writes, choice)


@dataclass(frozen=True)
class PlanFile:
    """The contents of a plan's file.

    Attributes:
        network: digest of the graph, weights left out, before blocks are merged.
        merged_blocks: how many first blocks are one operation, 0 for none.
        target: facts of the CPU that it was made for.
        threads, dtype, reproducible, memory_limit, max_error: the options.
        inputs: shapes by name.
        arena_bytes, weight_bytes, predicted_ns, predicted_error: of the plan.
        nodes: in the order of the graph.
        buffers: of the arena, with their offsets.
        measured_error: of the outputs on samples, None where it was not measured.
        precision: the half precision in which values are stored, None for none.
        source: the file that it was read from, empty if it was made in this process.
    """

    network: str
    merged_blocks: int
    target: Mapping[str, Any]
    threads: int
    dtype: DType
    reproducible: bool
    memory_limit: int | None
    max_error: float | None
    inputs: Mapping[str, tuple[int, ...]]
    arena_bytes: int
    weight_bytes: int
    predicted_ns: int
    predicted_error: float
    nodes: tuple[PlannedNode, ...]
    buffers: PlacedBuffers
    measured_error: float | None = None
    precision: DType | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"plan file {self.source!r}" if self.source else "the plan"

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of all nodes."""
        return tuple(node.decision for node in self.nodes)


def graph_digest(graph: Graph) -> str:
    """A digest of a graph's operations, the values of its constants left out."""
    text = [canonical_text((graph.inputs, graph.outputs))]
    for node in graph.nodes:
        types = [
            f"{graph.types[name].dtype}[{', '.join(map(str, graph.types[name].shape))}]"
            if name
            else ""
            for name in (*node.inputs, *node.outputs)
        ]
        attributes = sorted(node.attributes.items())
        text.append(canonical_text((node.op, node.inputs, node.outputs, types, attributes)))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:32]


def target_facts(target: Target) -> dict[str, Any]:
    """The fields of a target that determine the code of given choices, and its record's name."""
    others = ("costs", "extensions")  # which decide no code of the choices that there are
    facts = {f.name: getattr(target, f.name) for f in fields(target) if f.name not in others}
    return {**facts, "costs": target.costs.cpu}


def other_target(plan: PlanFile, target: Target) -> str:
    """Why a plan does not fit this CPU; empty if it does."""
    now = target_facts(target)
    decisive = now.keys() - {"name", "costs"}
    changed = sorted(key for key in decisive if plan.target.get(key) != now[key])
    if not changed:
        return ""
    return (
        f"it was made for another CPU ({plan.target.get('cpu')}, {plan.target.get('isa')}; this is "
        f"{target.cpu}, {target.isa}): {', '.join(changed)} differ"
    )


# -- writing -----------------------------------------------------------------------------------
def document(plan: PlanFile) -> dict[str, Any]:
    """The plan as JSON."""
    options = {
        "threads": plan.threads,
        "dtype": plan.dtype,
        **({"precision": plan.precision} if plan.precision else {}),
        "reproducible": plan.reproducible,
        "memory_limit": plan.memory_limit,
        "max_error": plan.max_error,
        "inputs": {name: list(shape) for name, shape in plan.inputs.items()},
    }
    predicted = {
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "memory_bytes": plan.arena_bytes + plan.weight_bytes,
        "predicted_ns": plan.predicted_ns,
        "predicted_error": plan.predicted_error,
    }
    if plan.measured_error is not None:
        predicted["measured_error"] = plan.measured_error
    nodes = [
        {
            "name": node.name,
            "op": node.op,
            "output": node.output,
            "reads": {name: str(form) for name, form in node.reads.items()},
            "writes": str(node.writes),
            "choice": node.choice_text,
            "algorithm": node.algorithm,
            "weight_bytes": node.weight_bytes,
            "time_ns": node.time_ns,
            "error": node.error,
            "kernels": node.kernels,
        }
        for node in plan.nodes
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": plan.network,
        "merged_blocks": plan.merged_blocks,
        "target": dict(plan.target),
        "options": options,
        "predicted": predicted,
        "nodes": nodes,
        "buffers": [buffer_document(*placed) for placed in plan.buffers],
    }


def buffer_document(buffer: Lifetime, offset: int) -> dict[str, Any]:
    """A buffer of the arena as JSON."""
    return {
        "name": buffer.name,
        "offset": offset,
        "bytes": buffer.bytes,
        "first": buffer.first,
        "last": buffer.last,
        "scratch": buffer.scratch,
    }


def write_plan(plan: PlanFile, path: str | os.PathLike[str]) -> None:
    """Write a plan; equal plans are equal files.

    Raises:
        InputError: the file cannot be written.
    """
    text = json.dumps(document(plan), indent=1, ensure_ascii=True, allow_nan=False)
    try:
        Path(path).write_text(text + "\n", encoding="ascii")
    except OSError as error:
        raise InputError(
            f"plan {str(path)!r} cannot be written ({reason(error)}); expected a path in a folder "
            "that is there and may be written"
        ) from error


# -- reading -----------------------------------------------------------------------------------
def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Read a plan from an untrusted file.

    Raises:
        InputError: the file cannot be read, is too large, or is no plan.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"plan is {path!r}; expected the path of a plan file")
    try:
        with open_regular(path, MOST_BYTES, what="plan", advice="give a plan") as file:
            data = read_whole(file)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(
            f"plan {str(path)!r} cannot be read ({reason(error)}); expected a file that "
            "net.plan.save wrote"
        ) from error
    try:
        return replace(_parse(json.loads(data)), source=os.fspath(path))
    except _WrongError as error:
        raise InputError(f"plan {str(path)!r}: {error}; save it anew with net.plan.save") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"plan {str(path)!r} is no JSON ({error}); expected a plan") from error


class _WrongError(Exception):
    """A part of a file is not as a plan has it."""


def _parse(data: Any) -> PlanFile:
    top = _object(data, "the file")
    if top.get("format") != FORMAT or top.get("version") not in (1, VERSION):
        raise _WrongError(
            f"its format is {short(top.get('format'))} {short(top.get('version'))}, expected "
            f"{FORMAT!r} {VERSION}"
        )
    if top["version"] == 1:
        top = _renamed(top)
        top["nodes"] = [
            _renamed(_object(node, "a node")) for node in _list(top.get("nodes"), "nodes")
        ]
    options = _object(top.get("options"), "options")
    predicted = _object(top.get("predicted"), "predicted")
    target = _object(top.get("target"), "target")
    for key, value in target.items():
        if not isinstance(value, str | int | float):
            raise _WrongError(f"target.{key} is {short(value)}, expected text or a number")
    limit, error = options.get("memory_limit"), options.get("max_error")
    return PlanFile(
        network=_text(top, "network"),
        merged_blocks=_count(top, "merged_blocks", most=_MOST_NODES),
        target=target,
        threads=_count(options, "threads", least=1, most=MOST_THREADS),
        dtype=as_dtype(_one_of(options, "dtype", FLOATS)),
        precision=as_dtype(_one_of(options, "precision", HALVES))
        if "precision" in options
        else None,
        reproducible=_flag(options, "reproducible"),
        memory_limit=None if limit is None else _count(options, "memory_limit", most=MOST_LIMIT),
        max_error=None
        if error is None
        else _number(options, "max_error", least=sys.float_info.min),
        inputs=_shapes(options.get("inputs")),
        arena_bytes=_count(predicted, "arena_bytes"),
        weight_bytes=_count(predicted, "weight_bytes"),
        predicted_ns=_count(predicted, "predicted_ns"),
        predicted_error=_number(predicted, "predicted_error"),
        nodes=tuple(_node(each) for each in _list(top.get("nodes"), "nodes")),
        buffers=tuple(_buffer(each) for each in _list(top.get("buffers"), "buffers")),
        measured_error=_number(predicted, "measured_error")
        if "measured_error" in predicted
        else None,
    )


def _renamed(data: Mapping[str, Any]) -> dict[str, Any]:
    """An object of version 1 with the keys of today."""
    return {_OLD_KEYS.get(key, key): value for key, value in data.items()}


def _node(data: Any) -> PlannedNode:
    node = _object(data, "a node")
    reads = _object(node.get("reads"), "reads")
    return PlannedNode(
        name=_text(node, "name"),
        op=_text(node, "op"),
        output=_text(node, "output"),
        reads={name: _format(reads, name) for name in reads},
        writes=_format(node, "writes"),
        choice_text=None if node.get("choice") is None else _text(node, "choice"),
        algorithm=_text(node, "algorithm"),
        weight_bytes=_count(node, "weight_bytes"),
        time_ns=_count(node, "time_ns"),
        error=_number(node, "error"),
        kernels=_text(node, "kernels"),
    )


def _buffer(data: Any) -> tuple[Lifetime, int]:
    buffer = _object(data, "a buffer")
    lifetime = Lifetime(
        _text(buffer, "name"),
        _count(buffer, "bytes"),
        _count(buffer, "first"),
        _count(buffer, "last"),
        _flag(buffer, "scratch"),
    )
    return lifetime, _count(buffer, "offset")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f"{what} is {short(value)}, expected an object")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > _MOST_NODES:
        raise _WrongError(f"{what} is {short(value)}, expected a list of at most {_MOST_NODES}")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise _WrongError(f"{key} is {short(value)}, expected text")
    return value


def _flag(data: Mapping[str, Any], key: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool):
        raise _WrongError(f"{key} is {short(value)}, expected true or false")
    return value


def _count(data: Mapping[str, Any], key: str, least: int = 0, most: int = _MOST_NUMBER) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _WrongError(f"{key} is {short(value)}, expected an integer of {least} to {most}")
    return value


def _number(data: Mapping[str, Any], key: str, least: float = 0.0) -> float:
    value = data.get(key)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value <= sys.float_info.max:  # type: ignore[operator]
        raise _WrongError(f"{key} is {short(value)}, expected a number of at least {least:g}")
    return float(value)  # type: ignore[arg-type]


def _one_of(data: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = _text(data, key)
    if value not in known:
        raise _WrongError(f"{key} is {short(value)}, expected one of {', '.join(known)}")
    return value


def _format(data: Mapping[str, Any], key: str) -> Format:
    value = _text(data, key)
    try:
        return Format.parse(value)
    except ValueError:
        raise _WrongError(
            f"format {short(value)} of {short(key)}, expected 'plain', 'nhwc' or such as 'c16'"
        ) from None


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    shapes = _object(value, "inputs")
    for name, shape in shapes.items():
        extents = _list(shape, f"the shape of {short(name)}")
        if any(isinstance(e, bool) or not isinstance(e, int) or e < 0 for e in extents):
            raise _WrongError(
                f"the shape of {short(name)} is {short(shape)}, expected extents of at least 0"
            )
    return {name: tuple(shape) for name, shape in shapes.items()}
