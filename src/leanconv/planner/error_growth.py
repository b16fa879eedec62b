"""Growth of errors on their way to the outputs: operations that magnify them.

A layer's error grows a few times on its way to the outputs (`NodeCost.growth`). That holds for sums
of products, pools and activations, whose results err as their inputs do. It does not hold where

- numbers of nearly one value are subtracted or divided, as those of a row and their mean in a
  normalisation: what is left errs more, relatively. So does the exponential of a large number, as
  in a softmax. How much depends on the data; several of them one after the other magnify little
  more than one, as the result of the first is spread again;
- a root (a logarithm, a power) is taken of numbers near 0, where its slope has no bound: the root
  of what is off by e is off by the root of e.

And it does not grow at all where the layer's results are the network's outputs (`last_layers`).

In float32 nothing of that shows, as what is stated there has room. In halves it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from math import prod
from weakref import WeakKeyDictionary

from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import OPS
from leanconv.graph.ops.pointwise import terms_of
from leanconv.graph.passes.fuse_chains import separated
from leanconv.spec import Activation
from leanconv.types import FLOATS, HALVES, DType

# Squared errors are counted in squares of this part of the dtype's roundoff, rounded up.
_ERROR_GRAIN = 1 / 16
# A layer's relative error grows up to 5 times on its way to the outputs (largest where the layer's
# values are more peaked than the outputs, as in VGG-16). Plain sums state 3 times their true error,
# so a smaller factor does for them; Winograd and FFT state nearly their true error.
ERROR_GROWTH, _TRANSFORMED_ERROR_GROWTH = 2.5, 4.0


NORMALISED = 6.0
_ERRING = (*FLOATS, *HALVES)


def magnified_errors(graph: Graph, roundoff: float) -> Mapping[str, float]:
    """By how much more the errors of nodes grow, by `Node.key`; without those that do not.

    Args:
        graph: after the passes.
        roundoff: of the errors that matter: a root's growth is that of an error of this size.
    """
    found = _magnified(separated(graph), 1 / math.sqrt(roundoff))
    for node in graph.nodes:  # what an Expression rounds before its result may grow more than that
        most = max(found.get(each.name, 0.0) for each in terms_of(node))
        if most > found.get(node.key, 0.0):
            found[node.key] = most
    return found


def _magnified(graph: Graph, root: float) -> dict[str, float]:
    """Return the growth behind each node that is one operation; `root` is a root's."""
    users = graph.users()
    found: dict[str, float] = {}
    behind: dict[str, frozenset[str]] = {}  # of values: what magnifies them
    for node in reversed(graph.nodes):
        own = frozenset(n for name in node.outputs for n in behind.get(name, ()))
        if own:
            found[node.key] = math.prod({"difference": NORMALISED, "root": root}[n] for n in own)
        own |= _magnifies(node, graph, users)
        if own:
            for name in node.inputs:
                if name and name not in graph.constants and graph.types[name].dtype in _ERRING:
                    behind[name] = behind.get(name, frozenset()) | own
    return found


def _magnifies(node: Node, graph: Graph, users: Mapping[str, list[Node]]) -> frozenset[str]:
    entry, running = OPS[node.op], [n for n in node.inputs if n and n not in graph.constants]
    if entry.magnifies == "root":
        readers = users[node.output]
        divides = bool(readers) and all(OPS[reader.op].divides for reader in readers)
        # A deviation by which is divided: an epsilon keeps it from 0.
        return frozenset(("difference" if divides else "root",))
    # A difference of data and a constant, a quotient by one, err as the data does.
    if entry.magnifies and len(running) >= entry.least:
        return frozenset((entry.magnifies,))
    return frozenset()


def last_layers(graph: Graph) -> frozenset[str]:
    """The convolutions whose results are outputs as they are, by `Node.key`: no error grows.

    Elements may be moved behind them, all of them, beside others; an activation may leave some as
    they are and scale the others down, as `leanconv.conv2d` takes it. All others have nodes behind
    them that compute, or are added to what the network computed before.
    """
    found = _last.get(graph)
    if found is None:
        found = _last[graph] = frozenset(_found_last(graph))
    return found


_last: WeakKeyDictionary[Graph, frozenset[str]] = WeakKeyDictionary()


def _found_last(graph: Graph) -> Iterator[str]:
    users, ends = graph.users(), set(graph.outputs)  # of values: those that reach outputs alone
    for node in reversed(graph.nodes):
        for name in node.outputs:
            readers = users[name]
            if all(reader.key in ends and _moves_all(reader, graph) for reader in readers):
                ends |= {name} if readers else set()
            else:
                ends.discard(name)
        plain = node.op in ("Conv", "ConvTranspose") and not node.input(3)
        if plain and node.key in ends and _keeps_size(node.attributes["activation"]):
            yield node.key


def _keeps_size(activation: Activation | None) -> bool:
    return activation is None or activation.kind in ("relu", "leaky_relu")


def _moves_all(node: Node, graph: Graph) -> bool:
    """Return whether each element of the inputs is one of the results, which are nothing else."""
    entry = OPS[node.op]
    if not (entry.rearranges or entry.moves is not None) or len(node.outputs) > 1:
        return False
    sizes = (prod(graph.types[name].shape) for name in node.inputs if name)
    return prod(graph.types[node.output].shape) >= sum(sizes)


def closeness(algorithm: str) -> float:
    """Return how much of its stated error an algorithm makes, relative to a plain sum."""
    transformed = algorithm in ("winograd", "fft")
    return _TRANSFORMED_ERROR_GROWTH / ERROR_GROWTH if transformed else 1.0


def error_units(error: float, dtype: DType, up: bool = True) -> int:
    """The square of a relative error as an integer, for sums that are exact."""
    units = (error / (dtype.roundoff * _ERROR_GRAIN)) ** 2
    return math.ceil(units) if up else math.floor(units)


def units_error(units: int, dtype: DType) -> float:
    """The least error that allows `units` units: `error_units` of it, rounded down, is no less."""
    error = math.sqrt(units) * dtype.roundoff * _ERROR_GRAIN
    while error_units(error, dtype, up=False) < units:
        error = math.nextafter(error, math.inf)
    while error and error_units(math.nextafter(error, 0.0), dtype, up=False) >= units:
        error = math.nextafter(error, 0.0)
    return error
