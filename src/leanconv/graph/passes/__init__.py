"""The passes that bring a file's graph to the one that is planned, in their order.

A pass is a pure function from graph to graph that keeps what the network computes (up to rounding
where constants are folded), its inputs and its outputs. It takes time proportional to the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph
from leanconv.graph.passes.add_convolutions import add_convolutions
from leanconv.graph.passes.canonical_forms import (
    dense_to_conv,
    global_pooling,
    merge_pads,
    pool_channels_last,
    transpose_interleaved,
)
from leanconv.graph.passes.coded_values import unsigned_codes
from leanconv.graph.passes.drop_channels import drop_channels
from leanconv.graph.passes.expand_quantised import expand_quantised, expand_without_kernel
from leanconv.graph.passes.fold_batch_norm import fold_batch_norm
from leanconv.graph.passes.fuse_blocks import fuse_all_blocks, fuse_blocks
from leanconv.graph.passes.fuse_chains import fuse_chains, fuse_extremes, fuse_reductions
from leanconv.graph.passes.fuse_epilogues import (
    fuse_activations,
    fuse_affine,
    fuse_coded_activations,
    fuse_codes,
    fuse_outer_residual,
    fuse_residual,
    hoist_activations,
    pad_codes,
)
from leanconv.graph.passes.fuse_normalisation import fuse_attention, fuse_normalisation
from leanconv.graph.passes.recognise_activations import factor_sums, recognise_activations
from leanconv.graph.passes.recognise_quantised import recognise_quantised
from leanconv.graph.passes.simplify import drop_dead, merge_common, simplify
from leanconv.graph.regions import with_regions
from leanconv.graph.verify import verify

__all__ = ["GPU_PASSES", "PASSES", "UNFUSED_PASSES", "Pass", "run_passes"]

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    drop_dead,
    simplify,
    merge_common,  # before patterns are sought, so that x and x are one name
    recognise_quantised,
    unsigned_codes,
    expand_without_kernel,
    factor_sums,
    recognise_activations,  # before numbers such as 3 and 1/6 fold into weights
    global_pooling,  # before dense layers look for the map behind their input
    transpose_interleaved,
    simplify,
    dense_to_conv,
    merge_pads,
    fold_batch_norm,  # behind dense layers too; before a convolution only where it does not pad
    add_convolutions,  # before one of them takes the others as its residual
    hoist_activations,
    simplify,  # the Reshapes between dense layers
    fuse_residual,  # the residual comes before the activation
    fuse_activations,
    fuse_affine,
    fuse_outer_residual,  # a residual that comes after the activation
    fuse_coded_activations,
    pad_codes,
    fuse_codes,
    simplify,
    merge_common,
    drop_channels,  # when all numbers per channel are folded
    pool_channels_last,  # when all Transposes have met that undo each other
    drop_dead,
    fuse_attention,
    fuse_normalisation,
    fuse_extremes,
    fuse_reductions,
    fuse_chains,  # operations that no pattern has taken
    fuse_blocks,  # last: no other pass looks into a chain
)

# The same passes, with every convolution a node of its own.
UNFUSED_PASSES = PASSES[:-1]

# A GPU's kernels end with the activation; it has none of attention, normalisation, expressions,
# and none that leaves out zeros.
_CPU_PASSES = (
    recognise_quantised,
    pool_channels_last,
    unsigned_codes,
    expand_without_kernel,
    fuse_affine,
    fuse_outer_residual,
    fuse_coded_activations,
    fuse_attention,
    fuse_normalisation,
    fuse_extremes,
    fuse_reductions,
    fuse_chains,
    fuse_blocks,
)
_SHARED_PASSES = tuple(each for each in PASSES if each not in _CPU_PASSES)
GPU_PASSES = (expand_quantised, *_SHARED_PASSES, fuse_all_blocks)

_logger = logging.getLogger(__name__)


def run_passes(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False) -> Graph:
    """Apply passes in order, to the graphs that nodes hold first.

    Args:
        graph: a verified graph in normal form.
        passes: to apply, in order.
        check: verify the graph before the first pass and after each one, to name the one that
            broke it; without, the result alone is verified.

    Returns:
        A graph with the same inputs and outputs.

    Raises:
        AssertionError: a pass has broken the graph; with `check`, the message names it.
    """
    graph = with_regions(graph, lambda body: run_passes(body, passes, check=check))
    if check:
        _check(graph, "before the first pass")
    for each in passes:
        before = len(graph.nodes)
        graph = each(graph)
        _logger.debug("%s: %d nodes, %d before", each.__name__, len(graph.nodes), before)
        if check:
            _check(graph, f"after the pass {each.__name__}")
    if not check:
        _check(graph, "after the passes")
    return graph


def _check(graph: Graph, when: str) -> None:
    try:
        verify(graph)
    except LeanConvError as error:
        raise AssertionError(f"the graph is broken {when}: {error}") from error
