"""The convolutions of `gradients.py`: layers in groups, each with what it must reach beside torch.

Names are those of the benchmark's tables: `64@56` has 64 channels in and out on a map of 56 x 56,
`256>64@56 1x1` leads from 256 channels to 64, `s2` is the stride. cv1 to cv12 are the MEC paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec

DW, DX, BOTH, FORWARD = "dw", "dx", "dx and dw", "y"

SQUARE = {
    "64@56": "ic64ih56oc64oh56kh3ph1",
    **{name: LAYERS[name] for name in ("cv9", "cv10", "cv11", "cv12")},
}
OTHERS = {
    "256>64@56 1x1": "ic256ih56oc64oh56kh1",
    "512>2048@7 1x1": "ic512ih7oc2048oh7kh1",
    "128@56 3x3 s2": "ic128ih56oc128oh28kh3sh2ph1",
    "stem 3>64@224 7x7 s2": "ic3ih224oc64oh112kh7sh2ph3",
    "stem 3>32@224 3x3 s2": "ic3ih224oc32oh112kh3sh2ph1",
    "depthwise 96@56": "g96ic96ih56oc96oh56kh3ph1",
    "depthwise 96@112 s2": "g96ic96ih112oc96oh56kh3sh2ph1",
}
# The convolutions of a ResNet-18 for images of 32 x 32: how often, and which.
_FIRST = "3>64@32"
RESNET18: Mapping[str, tuple[int, str]] = {
    _FIRST: (1, "ic3ih32oc64oh32kh3ph1"),
    "64@32": (4, "ic64ih32oc64oh32kh3ph1"),
    "64>128@32 s2": (1, "ic64ih32oc128oh16kh3sh2ph1"),
    "64>128@32 1x1 s2": (1, "ic64ih32oc128oh16kh1sh2"),
    "128@16": (3, "ic128ih16oc128oh16kh3ph1"),
    "128>256@16 s2": (1, "ic128ih16oc256oh8kh3sh2ph1"),
    "128>256@16 1x1 s2": (1, "ic128ih16oc256oh8kh1sh2"),
    "256@8": (3, "ic256ih8oc256oh8kh3ph1"),
    "256>512@8 s2": (1, "ic256ih8oc512oh4kh3sh2ph1"),
    "256>512@8 1x1 s2": (1, "ic256ih8oc512oh4kh1sh2"),
    "512@4": (3, "ic512ih4oc512oh4kh3ph1"),
}


@dataclass(frozen=True)
class Case:
    """One convolution of one batch, and what is computed of it.

    Attributes:
        layer: its name.
        problem: the convolution in oneDNN's form.
        batch: images.
        what: `DW`, `DX`, `BOTH` in one call, or `FORWARD`.
        count: how often it occurs in a step.
    """

    layer: str
    problem: str
    batch: int
    what: str
    count: int = 1

    @property
    def name(self) -> str:
        """The layer, the batch and what is computed."""
        return f"{self.layer} b{self.batch} {self.what}"

    @property
    def spec(self) -> ConvSpec:
        """The convolution, with the padding at both ends that networks give it."""
        spec = ConvSpec.parse(self.problem, batch=self.batch)
        both = replace(spec, pad_end=spec.pad_begin)
        assert both.output_size == spec.output_size
        return both


@dataclass(frozen=True)
class Group:
    """Cases that are judged together.

    Attributes:
        title: for people.
        cases: in the order of the table.
        mean, least: what the ratio to torch must reach, in the geometric mean and for each case; 0
            where nothing is asked.
        summed: whether the ratio is that of the sums of times, each as often as it occurs.
    """

    title: str
    cases: tuple[Case, ...] = field(repr=False)
    mean: float = 0.0
    least: float = 0.0
    summed: bool = False


def _cases(layers: Mapping[str, str], batches: Iterable[int], *whats: str) -> tuple[Case, ...]:
    return tuple(
        Case(name, text, n, what)
        for what in whats
        for n in batches
        for name, text in layers.items()
    )


def _step(batch: int) -> Iterator[Case]:
    """All convolutions of a step; nobody needs the gradient of the images."""
    for layer, (count, text) in RESNET18.items():
        yield Case(layer, text, batch, FORWARD, count)
        yield Case(layer, text, batch, DW if layer == _FIRST else BOTH, count)


_ALL = {**SQUARE, **OTHERS}
_OTHERS = "1x1, strided, stems and depthwise"
_STEP = "convolutions of a ResNet-18 step, images of 32 x 32, weights new in each step"

GROUPS: Mapping[str, Group] = {
    "dw 3x3": Group("dw of 3x3, batch 8", _cases(SQUARE, (8,), DW), 3.0, 2.3),
    "dw 3x3 one": Group("dw of 3x3, batch 1", _cases(SQUARE, (1,), DW), 3.0),
    "dw 3x3 many": Group("dw of 3x3, batch 32", _cases(SQUARE, (32,), DW)),
    "dw others": Group(f"dw of {_OTHERS}, batch 8", _cases(OTHERS, (8,), DW), 1.5, 1.05),
    "dw others one": Group(f"dw of {_OTHERS}, batch 1", _cases(OTHERS, (1,), DW)),
    "dw others many": Group(f"dw of {_OTHERS}, batch 32", _cases(OTHERS, (32,), DW)),
    "dx": Group("dx of all of these, batch 8", _cases(_ALL, (8,), DX), 2.2, 1.05),
    "dx one": Group("dx of all of these, batch 1", _cases(_ALL, (1,), DX)),
    "dx many": Group("dx of all of these, batch 32", _cases(_ALL, (32,), DX)),
    "twelve 8": Group("cv1 to cv12, batch 8", _cases(LAYERS, (8,), DW, DX), 2.0),
    "twelve 32": Group("cv1 to cv12, batch 32", _cases(LAYERS, (32,), DW, DX), 2.0),
    "resnet": Group(f"{_STEP}, batch 8", tuple(_step(8)), 1.9, summed=True),
}
