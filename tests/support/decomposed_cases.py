"""Operations that are imported as several simpler ones: cases of one node each."""

from __future__ import annotations

from support.import_cases import Cases, Numbers
from support.onnx_models import Const, ints

normal = Numbers(11).normal
IMAGE = normal(2, 12, 5, 7)
CASES = Cases()
case = CASES.add

LAYER = "LayerNormalization"
for opset in (17, 18, 22):
    case("plain", (opset,), LAYER, IMAGE, Const(normal(7)), Const(normal(7)))
case("no-bias", (17,), LAYER, IMAGE, Const(normal(7)))
case("absent-bias", (17,), LAYER, IMAGE, Const(normal(7)), None)
for axis in (0, 1, 2, -3):
    shape = IMAGE.shape[axis:]
    case(
        f"axis{axis}", (17,), LAYER, IMAGE, Const(normal(*shape)), Const(normal(*shape)), axis=axis
    )
case("vector", (17,), LAYER, normal(9), Const(normal(9)), Const(normal(9)), axis=0)
case("epsilon", (17,), LAYER, IMAGE, Const(normal(7)), Const(normal(7)), epsilon=0.3, stash_type=1)
case("computed", (17,), LAYER, IMAGE, normal(7), normal(7))
case("one", (17,), LAYER, normal(3, 4, 1), Const(normal(1)), Const(normal(1)))

INSTANCE = "InstanceNormalization"
for opset in (7, 17, 22):
    case("plain", (opset,), INSTANCE, IMAGE, Const(normal(12)), Const(normal(12)))
case("epsilon", (13,), INSTANCE, IMAGE, Const(normal(12)), Const(normal(12)), epsilon=0.1)
case("1d", (13,), INSTANCE, normal(2, 3, 9), Const(normal(3)), Const(normal(3)))
case("3d", (13,), INSTANCE, normal(2, 3, 4, 2, 5), Const(normal(3)), Const(normal(3)))
case("computed", (13,), INSTANCE, IMAGE, normal(12), normal(12))

GROUP = "GroupNormalization"
for groups in (1, 3, 12):
    per_group, per_channel = [[Const(normal(n)) for _ in range(2)] for n in (groups, 12)]
    case(f"groups{groups}", (18,), GROUP, IMAGE, *per_group, num_groups=groups)
    case(f"groups{groups}", (21, 22), GROUP, IMAGE, *per_channel, num_groups=groups)
case("epsilon", (21,), GROUP, IMAGE, *per_channel, num_groups=4, epsilon=0.2, stash_type=1)
case("computed", (18,), GROUP, IMAGE, normal(4), normal(4), num_groups=4)
case("computed", (21,), GROUP, IMAGE, normal(12), normal(12), num_groups=4)
case("flat", (21,), GROUP, normal(3, 12), *per_channel, num_groups=4)
case("3d", (21,), GROUP, normal(1, 12, 2, 3, 4), *per_channel, num_groups=2)

DEEP = normal(2, 18, 4, 5)
case("default", (7, 11, 13), "DepthToSpace", DEEP, blocksize=3)
for mode in ("DCR", "CRD"):
    case(mode, (11, 13), "DepthToSpace", DEEP, blocksize=3, mode=mode)
case("one", (13,), "DepthToSpace", DEEP, blocksize=1)
case("plain", (7, 13), "SpaceToDepth", normal(2, 3, 6, 9), blocksize=3)

for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
    case("axes", (7, 11, 17), op, IMAGE, axes=[2, 3])
    case("squeezed", (11, 17), op, IMAGE, axes=[-1, 1], keepdims=0)
    case("all", (7, 17, 18), op, IMAGE)
    case("input", (18, 20), op, IMAGE, ints(2, -1), keepdims=0)
    case("one", (18,), op, normal(3, 1, 4), ints(1))
    case("noop", (18, 20), op, IMAGE, noop_with_empty_axes=1)
case("plain", (7, 22), "Selu", 3 * IMAGE)
case("alpha", (7, 22), "Selu", 3 * IMAGE, alpha=0.7, gamma=-1.5)
case("plain", (12, 22), "Celu", 3 * IMAGE)
case("alpha", (12, 22), "Celu", 3 * IMAGE, alpha=1.7)
case("plain", (18, 22), "Mish", 3 * IMAGE)
case("plain", (7, 22), "Softsign", 3 * IMAGE)
case("three", (8, 13), "Mean", normal(3, 1), normal(4), Const(normal(2, 1, 1)))
case("one", (7, 13), "Mean", IMAGE)
for repeats in ((1, 1, 1, 1), (1, 2, 1, 3), (3, 1, 2, 1)):
    case("x".join(map(str, repeats)), (7, 13), "Tile", normal(2, 3, 4, 5), ints(*repeats))

TESTED = {parameters.values[0] for parameters in CASES}
