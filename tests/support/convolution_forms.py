"""Every algorithm in every form, and random problems for each."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from leanconv.types import FLOAT32, FLOAT64
from support.problems import ANY_CHANNELS, EXACT, SMOOTH, Problem, long_kernels, problems
from support.stated import KINDS

BOTH = (FLOAT32, FLOAT64)


@dataclass(frozen=True)
class Form:
    """An algorithm with parameters; `{}` are drawn from 1 to `most`.

    Attributes:
        text: as the user would write it.
        most: the largest number drawn.
        flat: only what transforms are made for.
        long: kernels of up to 31 taps along an axis.
    """

    text: str
    most: int = 1
    flat: bool = False
    long: bool = False

    @property
    def name(self) -> str:
        """Of the algorithm."""
        return self.text.partition(":")[0]

    def __str__(self) -> str:
        return self.text + ("-long" if self.long else "")


def _transforms(text: str, most: int = 1) -> Form:
    return Form(text, most, flat=True)


FORMS = (
    Form("naive"),
    Form("direct"),
    Form("direct", long=True),
    Form("planar"),
    Form("planar", long=True),
    Form("depthwise"),
    Form("depthwise", long=True),
    Form("separable"),
    Form("sparse"),
    Form("sparse", long=True),
    Form("im2col"),
    Form("im2col:rows=whole"),
    Form("im2col:rows={}", 60),
    Form("im2col:lanes=pixels"),
    Form("im2col:lanes=pixels,rows={}", 60),
    Form("im2col:lanes=pixels,rows=whole"),
    Form("mec"),
    Form("mec:solution=A"),
    Form("mec:solution=B"),
    Form("mec:T={}", 20),
    Form("mec:rows={}", 9),
    Form("im2col:rows=batch"),
    Form("im2win"),
    Form("im2win:rows=whole"),
    Form("im2win:rows={}", 9),
    Form("im2win:form=base"),
    Form("im2win:form=vector"),
    Form("im2win:form=printed"),
    Form("im2win:form=high"),
    Form("im2win:form=high,reorder=off"),
    Form("im2win:form=high,vectorise=off"),
    Form("im2win:form=high,register=off"),
    Form("im2win:form=high,cache=off"),
    Form("im2win:form=high,threads=off"),
    Form("im2win:form=high,unroll=on"),
    _transforms("winograd"),
    Form("winograd", flat=True, long=True),
    _transforms("winograd:m=2"),
    _transforms("winograd:m={}x{}", 8),
    _transforms("winograd:form=stages"),
    _transforms("winograd:form=stages,m={}", 6),
    _transforms("winograd:sums={}", 40),
    _transforms("winograd:tiles={}", 8),
    _transforms("winograd:rows={}", 6),
    _transforms("winograd:vectors={}", 3),
    _transforms("winograd:parts={}", 2),
    _transforms("winograd:edges=narrow"),
    _transforms("winograd:edges=narrow,m={}x{}", 6),
    _transforms("fft"),
    Form("fft", flat=True, long=True),
    _transforms("fft:tile=16,products=4"),
    _transforms("fft:tile=16,products=3"),
    _transforms("fft:tile=32,products=4"),
    _transforms("fft:tile=32,products=3"),
    Form("fft:tile=16", flat=True, long=True),
    Form("fft:tile=image", flat=True, long=True),
    Form("fft:parts={}x{}", 3, flat=True, long=True),
)


@st.composite
def cases(draw: st.DrawFn, form: Form) -> tuple[Problem, str, str]:
    """A problem, a kind of data, and the algorithm with its parameters."""
    kind = draw(st.sampled_from(KINDS))
    # Half without an activation: only then the stated error can be found too large.
    activations = (None,) * 8 + EXACT + (() if kind == "whole" else SMOOTH)
    if form.long:
        problem = draw(long_kernels(activations, BOTH))
    else:
        apart = form.name in ("depthwise", "separable")
        channels = ("depthwise",) if apart else ANY_CHANNELS
        problem = draw(problems(activations, BOTH, form.flat, channels))
    holes = form.text.count("{}")
    numbers = [draw(st.integers(1, form.most)) for _ in range(holes)]
    return problem, kind, form.text.format(*numbers)
