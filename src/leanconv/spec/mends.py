"""How an array of the wrong axes is made one of the right ones, for messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Extents = Sequence[int | str | None]


def mended(label: str, shape: Sequence[int], wanted: Extents | None) -> str:
    """An expression that brings an array's axes into the order that is wanted.

    Channels that are last instead of second, or second instead of last, are moved, and axes of
    extent 1 are added in front, or taken away.

    Args:
        label: what the array is called, such as `x`.
        shape: what it has.
        wanted: numbers, and None or names for extents that are open; None for any rank.

    Returns:
        An expression such as `x.transpose(0, 3, 1, 2)`, empty if there is none.
    """
    if wanted is None or fits(shape, wanted):
        return ""
    ways = ((label + text, found) for text, found in _ways(tuple(shape), len(wanted)))
    return next((text for text, found in ways if fits(found, wanted)), "")


def resized(label: str, shape: Sequence[int], wanted: Extents | None) -> str:
    """The same for an image of another size, which has to be resized as well.

    Args:
        label, shape, wanted: as of `mended`; channels are the axis of at most four.

    Returns:
        Such as `x.transpose(2, 0, 1)[None]`, or `x` if only the size is wrong; empty if unknown.
    """
    if wanted is None or len(wanted) != 4:
        return ""
    channels = next((a for a in (1, 3) if wanted[a] in (1, 3, 4)), None)
    if channels is None:
        return ""
    open_size = [extent if axis in (0, channels) else None for axis, extent in enumerate(wanted)]
    return label if fits(shape, open_size) else mended(label, shape, open_size)


def fits(shape: Sequence[int], wanted: Extents) -> bool:
    """Whether a shape is the one that is wanted, wherever that is not open."""
    return len(wanted) == len(shape) and all(
        not isinstance(want, int) or want == have for want, have in zip(wanted, shape, strict=True)
    )


def _ways(shape: tuple[int, ...], rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What may have been meant: text that follows the array's name, and the shape it gives."""
    lacking = rank - len(shape)
    if lacking == 0 and rank >= 3:
        yield from _turned(shape, 1)
    elif lacking == 1 and rank >= 3:
        yield "[None]", (1, *shape)
        for text, found in _turned(shape, 0):
            yield f"{text}[None]", (1, *found)
    elif lacking == 2 and rank >= 4:
        yield "[None, None]", (1, 1, *shape)
        yield "[None, ..., None]", (1, *shape, 1)
    elif lacking == -1 and shape[0] == 1:
        yield "[0]", shape[1:]


def _turned(shape: tuple[int, ...], first: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The last axis moved to the place `first`, and the other way round."""
    rank = len(shape)
    kept, rest = tuple(range(first)), tuple(range(first, rank))
    for moved in ((*rest[-1:], *rest[:-1]), (*rest[1:], *rest[:1])):
        perm = (*kept, *moved)
        yield f".transpose({', '.join(map(str, perm))})", tuple(shape[axis] for axis in perm)


def convolution_mend(
    shape: tuple[int, ...], weights: tuple[int, ...], groups: int, layout: str
) -> str:
    """What to do where x and w of a convolution have different channels, empty if unknown.

    Args:
        shape: of x, whose rank is that of w.
        weights: the shape of w, meant to be (K, C / groups, kernel…).
        groups, layout: of the convolution.
    """
    rank = len(shape)
    if rank == 3 and shape[0] == groups == 1 and layout == "NCHW" and weights[1] == weights[2]:
        return "for a picture and filters of two axes give x[None] and w[:, None]"
    last, second = shape[-1] == weights[1] * groups, shape[1] == weights[1] * groups
    if layout == "NCHW" and last and not second:
        ((text, _), _) = _turned(shape, 1)
        return f"x seems to be NHWC: say layout='NHWC', or give x{text}"
    if layout == "NHWC" and second and not last:
        return "x seems to be NCHW: say layout='NCHW'"
    channels = shape[1] if layout == "NCHW" else shape[-1]
    fitting = channels // weights[1] if weights[1] and channels % weights[1] == 0 else 0
    if fitting and weights[0] % fitting == 0:
        return f"with this w, groups={fitting} fits"
    back = f"{', '.join(map(str, range(rank - 2)))})"
    if weights[-2] == channels == groups > 1 and _kernel_at(
        0, weights
    ):  # depthwise, as in TensorFlow
        outs = weights[-1] * channels
        kernel = ", ".join(map(str, weights[:-2]))
        return (
            "w seems to be (kernel…, C, multiplier): give "
            f"w.transpose({rank - 2}, {rank - 1}, {back}.reshape({outs}, 1, {kernel})"
        )
    if weights[-2] * groups == channels and weights[-1] % groups == 0 and _kernel_at(0, weights):
        return (
            f"w seems to be (kernel…, C/groups, K): give w.transpose({rank - 1}, {rank - 2}, {back}"
        )
    if weights[-1] * groups == channels and weights[0] % groups == 0 and _kernel_at(1, weights):
        ((text, _), _) = _turned(weights, 1)
        return f"w seems to be (K, kernel…, C/groups): give w{text}"
    return ""


def _kernel_at(first: int, weights: tuple[int, ...]) -> bool:
    """Whether the kernel may begin at another axis than the third, where it is square if any is."""
    kernel = weights[first : first + len(weights) - 2]
    return len(set(kernel)) == 1 or len(set(weights[2:])) > 1
