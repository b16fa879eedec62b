"""The layers that the documents measure, as problem lines: the one table of them.

cv1 to cv12 are table 2 of the MEC paper (Cho & Brand, ICML 2017) and table 3-3 of the im2win
thesis: no padding, the stride of both axes alike.
"""

from __future__ import annotations

from leanconv.records import replace
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, DType

LAYERS: dict[str, str] = {
    "cv1": "ic3ih227oc96oh55kh11sh4",
    "cv2": "ic3ih231oc96oh56kh11sh4",
    "cv3": "ic3ih227oc64oh111kh7sh2",
    "cv4": "ic64ih224oc64oh109kh7sh2",
    "cv5": "ic96ih24oc256oh20kh5",
    "cv6": "ic256ih12oc512oh10kh3",
    "cv7": "ic3ih224oc64oh222kh3",
    "cv8": "ic64ih112oc128oh110kh3",
    "cv9": "ic64ih56oc64oh54kh3",
    "cv10": "ic128ih28oc128oh26kh3",
    "cv11": "ic256ih14oc256oh12kh3",
    "cv12": "ic512ih7oc512oh5kh3",
}
# MEC's table 3: how often each layer occurs in ResNet-101.
RESNET101: dict[str, int] = {"cv4": 1, "cv9": 3, "cv10": 4, "cv11": 23, "cv12": 3}


def layer(name: str, batch: int = 1, dtype: DType = FLOAT32, stride: int | None = None) -> ConvSpec:
    """The spec of a layer.

    Args:
        name: "cv1" to "cv12".
        batch: images.
        dtype: of everything.
        stride: another one than the table's, for sweeps such as MEC's figure 4a.
    """
    spec = ConvSpec.parse(LAYERS[name], batch=batch, dtype=dtype)
    return spec if stride is None else replace(spec, stride=(stride, stride))


NAMES: tuple[str, ...] = tuple(LAYERS)
