"""Operations that are composed of others: cases of one node each."""

from __future__ import annotations

import numpy as np

from support.import_cases import Cases, Numbers
from support.onnx_models import Const, ints

normal = Numbers(19).normal
X = normal(2, 3, 4, 5)
CASES = Cases()
case = CASES.add

PLACES = np.array([[0, 2, -1], [5, -4, 1]], np.int64)
for values in (np.float32([0.5, 2]), np.array([0, 1], np.int64)):
    for axis in (0, 1, -1):
        case(f"{values.dtype}{axis}", (9, 11), "OneHot", PLACES, ints(5), Const(values), axis=axis)
case("computed", (11,), "OneHot", PLACES, ints(4), np.float32([3, 4]))
case(
    "of-floats",
    (11,),
    "OneHot",
    PLACES.astype("f4"),
    Const(np.float32(3)),
    Const(np.float32([0, 1])),
)
for k in (None, 0, 1, -2, 9, -9):
    operands = (X,) if k is None else (X, Const(np.int64(k)))
    for upper in (0, 1):
        case(f"{k}-{upper}", (14,), "Trilu", *operands, upper=upper)
case("int64", (14,), "Trilu", np.round(9 * X).astype(np.int64))
for k in (0, 2, -1, 70):
    case(f"{k}", (9,), "EyeLike", X[0, 0], k=k)
case("of-int64", (9,), "EyeLike", np.ones((3, 5), np.int64), dtype=1)

for extent in range(1, 5):
    case(f"{extent}", (11,), "Det", normal(2, 3, extent, extent))
NORM = (normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.5)
case("computed", (9, 15), "BatchNormalization", X, *NORM, epsilon=0.01)
case("some-computed", (15,), "BatchNormalization", X, NORM[0], *map(Const, NORM[1:]))

A, B, C = normal(3, 4), normal(4, 5), normal(5, 3)
SQUARE, CUBE = normal(4, 4), normal(3, 3, 3)
for equation, *arrays in (
    ("ij,jk->ik", A, B),
    ("ij,jk", A, B),
    ("ij->ji", A),
    ("ba", A),
    ("ij->", A),
    ("ij->i", A),
    ("ii->i", SQUARE),
    ("ii", SQUARE),
    ("iii->i", CUBE),
    ("iij->j", CUBE),
    ("iji->ij", CUBE),
    ("...ii->...i", normal(2, 3, 4, 4)),
    ("...ij,...jk->...ik", normal(2, 1, 3, 4), normal(2, 6, 4, 5)),
    ("i...,...j", A, normal(4, 2)),
    ("bhqd,bhkd->bhqk", X, normal(2, 3, 6, 5)),
    ("bhqk,bhkd->bqhd", normal(2, 3, 4, 6), normal(2, 3, 6, 5)),
    ("ij,jk,ki->", A, B, C),
    ("ij,jk,ki->ijk", A, B, C),
    ("i,j->ij", A[0], B[0]),
    ("i,i->", A[0], A[1]),
    ("ij,ij->i", A, A[::-1].copy()),
    ("bi,io,bo->b", A, B, normal(3, 5)),
    ("a,b,c,d->dcba", A[0], B[0], C[0], C[1]),
    (" i j , j -> i ", A, A[0]),
    ("i,->i", A[0], np.array(2, np.float32)),
    ("ij,ij->ij", normal(3, 1), normal(3, 4)),
    ("ij,jk->ik", normal(3, 1), normal(4, 5)),
):
    name = equation.replace(" ", "_").replace(">", "")
    case(name, (12,), "Einsum", *arrays, equation=equation)
WHOLE = np.round(9 * A).astype(np.int64)
case("int64", (12,), "Einsum", WHOLE, WHOLE.T.copy(), equation="ij,jk->ik")
case(
    "int32", (12,), "Einsum", WHOLE.astype(np.int32), WHOLE[0].astype(np.int32), equation="ij,j->i"
)

TESTED = {parameters.values[0] for parameters in CASES} | {"BitCast"}
