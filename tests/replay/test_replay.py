"""Emitted code stays what it was: digests of some problems, loop nests of every method."""

from __future__ import annotations

from pathlib import Path

import pytest

from leanconv.spec import ConvSpec
from leanconv.target import preset
from replay import emitted_code as replay
from support.outlines import outline

OUTLINES = Path(__file__).parent / "outlines"
SOME = ("cv5 NCHW", "cv11 NHWC", "MobileNet-v1/conv4.dw", "ResNet-50/layer2.0.downsample")
# Two of each method: what is typical of it, and what is not.
GOLDEN = {
    "direct": ("ic64ih20iw18oc48oh18ow16kh3", "ic64ih14oc128oh14kh1"),
    "planar": ("ic3ih34iw50oc8oh32ow48kh3", "ic8ih17oc16oh17kh1"),
    "depthwise": ("g32ic32ih14oc32oh14kh3", "g8mb2ic8ih15oc8oh8kh3sh2ph1"),
    "im2col": ("ic16ih20oc32oh18kh3", "mb2ic16ih20oc32oh9kh3sh2", "ic3ih40oc24oh10kh4sh4"),
    "mec": ("ic16ih20oc32oh18kh3", "mb2ic16ih20oc32oh9kh3sh2"),
    "im2win": ("ic16ih20oc32oh18kh3", "mb2ic16ih20oc32oh9kh3sh2"),
    "winograd": ("ic32ih20iw18oc48oh18ow16kh3", "ic32ih21oc32oh9kh5sh2"),
    "fft": ("ic32ih20oc32oh18kh3", "ic16ih40oc16oh36kh5"),
    "sparse": ("ic64ih14oc32oh14kh1", "ic32ih20iw18oc48oh10ow9kh3sh2ph1"),
    "naive": ("ic4ih9oc4oh7kh3", "g2ic4ih9oc4oh4kh3sh2"),
}


def outlines(method: str) -> str:
    """The loop nests of a method's kernels for its two problems, on AVX-512."""
    text, layout = [], "NHWC" if method == "depthwise" else "NCHW"
    for problem in GOLDEN[method]:
        kernels = replay.conv_kernels(ConvSpec.parse(problem, layout=layout), method, "znver5")
        assert kernels, f"{method} refuses {problem}"
        for kernel in kernels:
            nest = outline(kernel.text(preset("znver5")))
            text.append(f"{problem}: {type(kernel).__name__}\n{nest}")
    return "\n".join(text)


@pytest.mark.parametrize("target", replay.TARGETS)
def test_digests_of_some_problems_are_those_kept(target: str) -> None:
    kept = {text.partition(": ")[0]: text for text in replay.kept(target)}
    for label, spec, selector in replay.problems():
        if label in SOME:
            now = replay.line(label, replay.conv_kernels(spec, selector, target), target)
            assert now == kept[label], "run make replay; if it is meant, keep it with --write"
    assert set(SOME) < set(kept)
    assert set(replay.NETWORKS) < set(kept)


def test_every_method_has_its_loop_nests() -> None:
    of_filters = {"separable"}  # whose numbers say in how many terms they come apart
    assert set(GOLDEN) == set(replay.ALGORITHMS) - of_filters


@pytest.mark.parametrize("method", GOLDEN)
def test_loop_nests_are_those_kept(method: str) -> None:
    file = OUTLINES / f"{method}.txt"
    assert outlines(method) == file.read_text(encoding="utf-8"), "see tests/replay/emitted_code.py"
