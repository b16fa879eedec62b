"""Dense layers of few rows of floats read weights as the codes that they are made of."""

from __future__ import annotations

import math

import numpy as np

from leanconv.graph.edit import Array, Editor, frozen, rewrite
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops.packed_matmul import WORD_BITS, are_usual, packed_rows
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.passes.coded_values import HeldCodes, Values
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32

_MOST_ROWS = 16  # beyond, a layer is bound by its products and not by reading the weights
_LEAST_WEIGHTS = 1 << 14  # of fewer the bytes do not matter


def dense_of_codes(graph: Graph) -> Graph:
    """Replace Gemm and MatMul of floats by constant codes of 8 bits, or 4, by MatMulNBits.

    The codes have one scale, or one for each column of the product. Left alone: many rows, few
    weights, a Gemm with factors, and one whose third input is no vector of constants.

    Requires: a verified graph, as its file has it, after layers of codes were recognised.
    Ensures: no others are changed.
    """
    return rewrite(graph, _rule)


def _rule(editor: Editor, node: Node) -> bool:
    if node.op not in ("Gemm", "MatMul"):
        return False
    held, (x, w) = Values(editor).held(node.inputs[1]), node.inputs[:2]
    kind, turned, bias = editor.types[x], bool(node.attributes.get("transB")), node.input(2)
    if held is None or len(editor.shape(w)) != 2 or kind.dtype != FLOAT32 or not kind.shape:
        return False
    outputs, inner = editor.shape(w) if turned else editor.shape(w)[::-1]
    plain = [node.attributes.get(n, 1) for n in ("alpha", "beta")] == [1, 1]
    if not plain or node.attributes.get("transA") or x in editor.constants:
        return False
    if outputs * inner < _LEAST_WEIGHTS or math.prod(kind.shape[:-1]) > _MOST_ROWS:
        return False
    sound = str(held.codes.dtype) in CODES and are_usual(held.scale)
    if not sound or not _of_outputs(held, turned):
        return False
    if bias and (bias not in editor.constants or not _is_vector(editor.types[bias], outputs)):
        return False
    codes, scales, zeros, given = _packed(held, turned)
    inputs = [x, editor.constant(w, codes), editor.constant(w, scales)]
    inputs += ["" if zeros is None else editor.constant(w, zeros), bias]
    attributes = frozen({**given, "inner": int(inner), "outputs": int(outputs)})
    while not inputs[-1]:
        inputs.pop()
    new = Node("MatMulNBits", tuple(inputs), node.outputs, attributes, node.name)
    editor.replace(node, new)
    return True


def _is_vector(kind: TensorType, count: int) -> bool:
    return kind.elements == count and kind.dtype == FLOAT32


def _of_outputs(held: HeldCodes, turned: bool) -> bool:
    """Whether the weights have one scale, or one for each column of the product."""
    return held.scale.size == 1 or held.axis == (0 if turned else 1)


def _packed(held: HeldCodes, turned: bool) -> tuple[Array, Array, Array | None, dict[str, int]]:
    """Packed codes, a row for each output, scales, zero points; bits, block and middle."""
    codes = held.codes if turned else held.codes.T
    outputs, inner = codes.shape
    signed = codes.dtype.kind == "i"
    least, past = (-8, 8) if signed else (0, 16)
    few = min(int(codes.min()), int(held.zero.min())) >= least and int(codes.max()) < past
    bits = 4 if few else 8
    middle = 1 << (bits - 1) if signed else 0
    words = WORD_BITS // bits
    block = ceil_div(inner, words) * words
    scales = np.ascontiguousarray(np.broadcast_to(held.scale.reshape(-1), outputs))
    zeros = np.broadcast_to(held.zero.reshape(-1).astype(np.int64) + middle, outputs)
    given = {"bits": bits, "block": block, "middle": int(zeros[0])}
    alike = bool(np.all(zeros == zeros[0]))
    packed = packed_rows(codes, bits, middle, block)
    return packed, scales, None if alike else zeros.astype(np.uint8), given
