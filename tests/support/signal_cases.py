"""Fourier transforms, windows and mel filters: cases of one node each."""

from __future__ import annotations

import numpy as np

from support.import_cases import Cases, Numbers
from support.onnx_models import Const

normal = Numbers(29).normal
CASES = Cases()
case = CASES.add
REAL, COMPLEX = normal(2, 12, 5, 1), normal(2, 12, 5, 2)


def whole(number: int) -> Const:
    """A number in the file."""
    return Const(np.array(number, np.int64))


for name, x in (("real", REAL), ("complex", COMPLEX)):
    case(name, (17,), "DFT", x)
    case(f"{name}-axis", (17,), "DFT", x, axis=2)
    case(f"{name}-input", (20,), "DFT", x, None, whole(1))
    case(f"{name}-inverse", (17,), "DFT", x, inverse=1)
    for length in (7, 12, 15):
        case(f"{name}-{length}", (17, 20), "DFT", x, whole(length))
case("half", (17,), "DFT", REAL, onesided=1)
case("half-odd", (20,), "DFT", REAL, whole(11), whole(1), onesided=1)

SIGNAL, TAPER = normal(2, 100, 1), Const(np.hanning(16).astype(np.float32))
for onesided in (0, 1):
    case(f"held{onesided}", (17,), "STFT", SIGNAL, whole(5), TAPER, onesided=onesided)
    case(f"plain{onesided}", (17,), "STFT", SIGNAL, whole(8), None, whole(21), onesided=onesided)
case("computed", (17,), "STFT", SIGNAL, whole(16), normal(16), whole(16))
case("complex", (17,), "STFT", normal(1, 40, 2), whole(4), TAPER, onesided=0)
for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
    for periodic in (0, 1):
        case(f"{periodic}", (17,), op, whole(23), periodic=periodic)
edges = (Const(np.float32(20)), Const(np.float32(7000)))
case("plain", (17,), "MelWeightMatrix", whole(40), whole(512), whole(16000), *edges)
case(
    "few",
    (17,),
    "MelWeightMatrix",
    whole(8),
    whole(16),
    whole(8192),
    *(Const(np.float32(e)) for e in (0, 4096)),
)

TESTED = {parameters.values[0] for parameters in CASES}
