"""What direct convolution chooses where weights come from memory, and what it asks for ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.select import choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.tiling import Tile
from leanconv.spec import ConvSpec, Format
from leanconv.target import preset
from support.kernel_runner import run_kernel
from support.packing import packed_weights

TARGET = preset("znver4")


def planned(text: str, cold: bool, **changes: bool) -> DirectConv:
    spec = ConvSpec.parse(text, **changes)
    form = Format(16)
    x = Access.of_format(spec.input_shape, form)
    y = Access.of_format(spec.output_shape, form)
    problem = replace(Problem.of(spec, x, y), weights_from_dram=cold)
    kernel = choose(problem, TARGET, Choice("direct")).kernels[0].kernel
    assert isinstance(kernel, DirectConv)
    return kernel


def test_cold_weights_are_read_by_tiles_of_more_rows() -> None:
    for text in ("ic512ih7oc2048oh7kh1", "ic2048ih7oc512oh7kh1", "ic1024ih14oc256oh14kh1"):
        warm, cold = planned(text, False), planned(text, True)
        assert cold.tile.rows >= 7
        assert cold.tile.rows > warm.tile.rows
        assert cold.tile.rows * cold.tile.vectors <= 24
        assert cold.flops == warm.flops


def test_the_only_row_is_cut_into_whole_tiles() -> None:
    kernel = planned("ic2048ih7oc512oh7kh1", True)
    assert kernel.conv.window.out == (1, 7, 7)
    assert kernel.tile.rows == 7
    assert kernel.chunks == kernel.panels * kernel.conv.row_count


def test_cold_1x1_layers_are_shared_by_pixels() -> None:
    for text in ("ic1024ih14oc256oh14kh1", "ic256ih14oc1024oh14kh1", "ic256ih56oc512oh28kh1sh2"):
        warm, cold = planned(text, False), planned(text, True)
        assert (warm.bands, cold.bands) == (1, 2)
        assert cold.conv.row_count % 2 == 0
        assert cold.chunks >= 2 * cold.panels
    for text in ("ic512ih28oc128oh28kh1", "ic128ih28oc512oh28kh1"):
        assert not planned(text, False).panels_inside
        assert planned(text, True).panels_inside
    others = (
        "mb2ic1024ih14oc256oh14kh1",  # threads share images
        "ic1024ih14oc512oh14kh1",  # too many weights to be read by each thread
        "ic1024ih1oc256oh1kh1",
        "ic128ih14oc128oh14kh3ph1",
        "ic512ih15oc256oh15kh1",  # rows that cannot be halved
    )
    assert all(planned(text, True).bands == 1 for text in others)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("bands", "rows"), [(1, 4), (2, 1), (2, 2), (2, 3), (3, 2), (6, 1)])
def test_bands_compute_every_row_once(bands: int, rows: int, inside: bool) -> None:
    spec = ConvSpec.parse("mb2ic5ih6iw7oc40oh6ow7kh1")
    places = (Access.planes(spec.input_shape), Access.planes(spec.output_shape))
    given = Problem.of(spec, *places).conv
    kernel = DirectConv(
        conv=given,
        lanes=given.lanes(host()),
        tile=Tile(3, 1),
        rows=rows,
        panels_inside=inside,
        bands=bands,
    )
    generator = np.random.default_rng(1)
    x, w = (
        generator.integers(-4, 5, shape).astype(np.float32)
        for shape in (spec.input_shape, spec.weight_shape)
    )
    y = np.full(spec.output_shape, np.nan, np.float32)
    packed = packed_weights(kernel, w[:, :, np.newaxis])
    found = run_kernel(kernel, x, packed, y, parts=[kernel.chunks // 2])
    assert np.array_equal(found, np.einsum("nchw,kcij->nkhw", x, w))
    first = range(kernel.chunks // (2 * bands))  # of one image's chunks, and its upper rows
    upper = run_kernel(kernel, x, packed, y, singly=first)
    assert np.array_equal(upper[0, :, : 6 // bands], found[0, :, : 6 // bands])
    assert np.isnan(upper[1]).all()
    assert np.isnan(upper[0, :, 6 // bands :]).all()


def test_large_inputs_and_residuals_are_asked_for_ahead() -> None:
    large = planned("ic256ih56oc512oh28kh1sh2", True, residual=True)
    assert large.fetch
    assert large.prefetches_residual
    small = planned("ic64ih14oc64oh14kh1", True, residual=True)
    assert not small.fetch
    assert not small.prefetches_residual


def test_panels_pass_by_where_neither_they_nor_the_input_stay() -> None:
    def of_planes(text: str) -> DirectConv:
        spec = ConvSpec.parse(text)
        x, y = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
        kernel = choose(Problem.of(spec, x, y), TARGET, Choice("direct")).kernels[0].kernel
        assert isinstance(kernel, DirectConv)
        return kernel

    long = of_planes("ic2048ih33oc256oh33kh3dh11ph12")
    assert long.panels_inside
    assert long.tile.rows >= 8  # six rows would wait for the weights
    small_input = of_planes("ic512ih19oc1024oh19kh3dh5ph6")
    assert not small_input.panels_inside


@pytest.mark.parametrize("name", ["sapphirerapids", "znver4", "haswell", "neoverse-n1"])
@pytest.mark.parametrize("text", ["ic768ih1oc3072oh1kh1", "ic4096ih1oc4096oh1kh1"])
def test_a_row_times_many_weights_is_read_by_vectors(text: str, name: str) -> None:
    """One pixel waits for its weights whatever reads them: that all lanes multiply decides."""
    spec = ConvSpec.parse(text)
    planes = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    for cold in (False, True):
        problem = replace(Problem.of(spec, *planes), weights_from_dram=cold)
        assert choose(problem, preset(name)).choice.algorithm == "direct"
