"""Whether images may be computed together: each gets in a batch the bits that it gets alone.

Plans are `reproducible`, so that kernels do that; what is found here is a network that mixes
images, for example by a mean over all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.api.backend import Compiled, NetworkFacts
from leanconv.api.inputs import InputSpec, Shape
from leanconv.errors import LeanConvError

log = logging.getLogger(__name__)


def comparison_bytes(one: NetworkFacts, size: int) -> int:
    """What `alike` takes for batches of up to `size`.

    Args:
        one: the plan of one image.
        size: of the largest batch.

    Returns:
        Bytes of the images, of three steps in float32 to one of them, of the results of a batch
        and of one image.
    """
    images = sum(kind.bytes for kind in one.inputs.values())
    largest = max((kind.elements for kind in one.inputs.values()), default=0)
    results = sum(kind.bytes for kind in one.outputs.values() if kind is not None)
    return size * images + 3 * 4 * largest + (size + 1) * results


def alike(
    plans: Mapping[int, Compiled], shapes: Sequence[Shape], inputs: Sequence[InputSpec]
) -> bool:
    """Whether each image gets in all batch sizes the bits that it gets alone.

    Args:
        plans: by batch size, 1 among them.
        shapes: of one image's inputs, with a first extent of 1.
        inputs: of the network.
    """
    random, most = np.random.default_rng(0), max(plans)
    pairs = zip(shapes, inputs, strict=True)
    arrays = [_images(random, most, shape, spec) for shape, spec in pairs]
    try:
        for size, plan in plans.items():
            together = plan.run([array[:size] for array in arrays])
            if any(result.shape[:1] != (size,) for result in together):
                return False
            for n in range(size):  # one at a time: no limit counts the memory of these results
                alone = plans[1].run([array[n : n + 1] for array in arrays])
                found = zip(together, alone, strict=True)
                if not all(_same_bits(batch[n : n + 1], one) for batch, one in found):
                    return False
    except LeanConvError as error:  # of values: there are networks that random numbers do not suit
        log.warning("whether images may be computed together is not known: %s", error)
        return False
    return True


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays of a dtype are equal, NaN and signs of zeros compared, too."""
    codes = np.dtype(f"u{one.itemsize}")
    return np.array_equal(one.view(codes), other.view(codes))


def _images(random: np.random.Generator, count: int, shape: Shape, spec: InputSpec) -> np.ndarray:
    """Random images, each of another scale; made one after the other, as memory is counted."""
    kind = np.dtype(spec.dtype.numpy)
    images = np.empty((count, *shape[1:]), kind)
    for n in range(count):
        numbers = random.standard_normal(shape[1:], np.float32) * np.float32(n + 1)
        if spec.dtype.held != spec.dtype:  # bfloat16: the upper half of float32's bits
            images[n] = np.atleast_1d(numbers).view(np.uint32).reshape(shape[1:]) >> 16
        else:
            images[n] = numbers if spec.dtype.is_float else np.abs(numbers) % 2
    return images
