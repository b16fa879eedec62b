"""Random layers as small networks, and sizes to call them at: convolutions of all kinds, Resize."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
from onnx import helper

from support.network_models import small

Shape = tuple[int, ...]
Drawn = tuple[bytes, list[Shape]]

_MOST = 200_000  # elements of an output
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def transposed_layer(random: Random) -> Drawn:
    """A transposed convolution: any kernel, stride, padding, before an activation or none."""
    while True:
        rank, group = random.choice((1, 1, 2, 2, 3)), random.choice((1, 1, 1, 2, 3))
        longest = {1: (33, 40, 40), 2: (9, 9, 9), 3: (4, 4, 5)}[rank]
        kernel, strides, size = (_extents(random, rank, most) for most in longest)
        dilations = [random.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
        padded = [random.randrange(s) if random.random() < 0.3 else 0 for s in strides]
        full = [
            s * (n - 1) + (k - 1) * d + 1 + p
            for s, n, k, d, p in zip(strides, size, kernel, dilations, padded, strict=True)
        ]
        pads = [random.randrange(max(1, min(6, n // 2))) for n in full * 2]
        left = [n - a - b for n, a, b in zip(full, pads[:rank], pads[rank:], strict=True)]
        if min(left) > 0 and prod(left) < _MOST:
            break
    inputs, outputs = group * random.choice((1, 2, 5, 16, 19)), random.choice((1, 1, 2, 3, 8, 17))
    constants = {
        "w": _whole(random, inputs, outputs, *kernel),
        "b": _whole(random, group * outputs),
    }
    nodes = [
        helper.make_node(
            "ConvTranspose", ["x", "w", "b"], ["z"], group=group, strides=strides, pads=pads,
            dilations=dilations, output_padding=padded,
        ),
        helper.make_node(random.choice(("Relu", "LeakyRelu", "Sigmoid", "Identity")), ["z"], ["y"]),
    ]  # fmt: skip
    sizes = [tuple(size), tuple(random.randint(1, n) for n in size)]
    return _network(random, nodes, constants, inputs, sizes)


def resized_layer(random: Random) -> Drawn:
    """A Resize of any mode, larger or smaller, behind a convolution or not.

    An axis whose size stays has a factor of 1: onnxruntime copies it whatever the factor is.
    """
    mode = random.choice(("linear", "linear", "cubic", "cubic", "nearest"))
    coordinates = random.choice((*_COORDINATES, "half_pixel_symmetric", "tf_crop_and_resize"))
    size = [random.choice((1, 2, 3, 5, 7, 33, 70)), random.choice((1, 2, 3, 9, 40, 130))]
    larger = [size[0] + random.randint(1, 9), size[1] + random.randint(0, 9)]
    factors = [random.choice((0.125, 0.375, 0.5, 0.75, 1, 1.25, 2, 3.75, 6)) for _ in size]
    for axis, sizes in enumerate(zip(size, larger, strict=True)):
        if any(int(n * factors[axis]) in (0, n) for n in sizes):
            factors[axis] = 1
    if coordinates == "tf_crop_and_resize" and 1 in factors:
        coordinates = "half_pixel"
    given: dict[str, Any] = {"mode": mode, "axes": [2, 3], "extrapolation_value": 3.0}
    constants = {"roi": np.zeros(0, "f4"), "s": np.array(factors, "f4")}
    if coordinates == "tf_crop_and_resize":
        ends = [random.uniform(a, a + 1.5) for a in (-0.3, -0.3, 0.2, 0.2)]
        constants["roi"] = np.array(ends, "f4")
    elif mode != "nearest":
        given["antialias"] = int(random.random() < 0.3)
    if mode == "cubic":
        given |= {
            "exclude_outside": random.randrange(2),
            "cubic_coeff_a": random.choice((-0.5, -0.75)),
        }
    given["coordinate_transformation_mode"] = coordinates
    channels, source, nodes = random.choice((1, 2, 3, 16, 17)), "x", []
    if random.random() < 0.3:
        constants["w"] = _whole(random, 16, channels, 1, 1)
        nodes.append(helper.make_node("Conv", ["x", "w"], ["c"]))
        source = "c"
    nodes.append(helper.make_node("Resize", [source, "roi", "s"], ["z"], **given))
    nodes.append(helper.make_node("Identity", ["z"], ["y"]))
    sizes = [tuple(size), tuple(larger)]
    return _network(random, nodes, constants, channels, sizes, opset=18)


def layers_of_open_sizes(random: Random) -> Drawn:
    """One to three convolutions: dense, depthwise, 1x1, in groups, transposed."""
    first = channels = random.choice((1, 2, 3, 16, 20))
    nodes, constants, value = [], {}, "x"
    for number in range(random.randint(1, 3)):
        kind = random.choice(("dense", "dense", "depthwise", "1x1", "grouped", "transposed"))
        group = {"depthwise": channels, "grouped": 2 if channels % 2 == 0 else 1}.get(kind, 1)
        outputs = group * (1 if kind == "depthwise" else random.choice((1, 3, 8, 16, 32)))
        kernel = [1, 1] if kind == "1x1" else [random.choice((1, 2, 3, 5, 7, 11)) for _ in range(2)]
        given: dict[str, Any] = {
            "group": group,
            "strides": [random.choice((1, 1, 2, 3)) for _ in range(2)],
        }
        shape = (outputs, channels // group, *kernel)
        if kind == "transposed":
            given["pads"] = [(k - 1) // 2 for k in kernel] * 2
            shape = (channels, outputs // group, *kernel)
        else:
            given["dilations"] = [random.choice((1, 1, 2)) for _ in range(2)]
            reach = [(k - 1) * d for k, d in zip(kernel, given["dilations"], strict=True)]
            given["pads"] = [random.randint(0, n // 2 + 1) for n in reach] * 2
        constants[f"w{number}"] = _whole(random, *shape) / np.float32(64)
        constants[f"b{number}"] = _whole(random, outputs)
        operation = "ConvTranspose" if kind == "transposed" else "Conv"
        operands = [value, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node(operation, operands, [f"z{number}"], **given))
        nodes.append(
            helper.make_node(random.choice(("Relu", "Tanh")), [f"z{number}"], [f"y{number}"])
        )
        channels, value = outputs, f"y{number}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    sizes = [
        (random.choice((1, 2, 7, 20, 33, 64)), random.choice((1, 3, 16, 31, 70))) for _ in range(3)
    ]
    return _network(random, nodes, constants, first, sizes, is_open=True)


def _network(
    random: Random, nodes: list[Any], constants: dict[str, np.ndarray], channels: int,
    sizes: list[Shape], is_open: bool | None = None, opset: int = 17,
) -> Drawn:  # fmt: skip
    """The file, of a fixed or of open sizes, and shapes of its input; more than one if open."""
    if is_open is None:
        is_open = random.random() < 0.4
    shapes = [(random.randint(1, 2), channels, *size) for size in sizes]
    names = ["n", channels, *(f"s{axis}" for axis in range(len(sizes[0])))]
    declared = names if is_open else shapes[0]
    ends = {"y": ["N", "C", *(f"t{axis}" for axis in range(len(sizes[0])))]}
    data = small(nodes, {"x": declared}, ends, constants, opset=opset)
    return data, shapes if is_open else shapes[:1]


def _extents(random: Random, rank: int, most: int) -> list[int]:
    return [random.choice((1, 2, 3, 4, random.randint(1, most))) for _ in range(rank)]


def _whole(random: Random, *shape: int) -> np.ndarray:
    drawn = np.random.default_rng(random.getrandbits(32)).integers(-4, 5, shape)
    return drawn.astype(np.float32)
