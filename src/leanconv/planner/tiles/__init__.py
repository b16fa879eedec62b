"""Tiles of images larger than memory: where windows may lie so that their bits are the whole's.

A network is run on windows of its inputs, all of one shape. Where a window ends inside the image,
a margin of its results is wrong (the network pads there) and is left out; where it ends at the
image's edge it sees what the whole image sees.

    pins        algorithms whose sums do not depend on where a window lies
    groups      axes of inputs that are cut together; those that cannot be, and why
    margins     which results of a window are right
    likeness    whether the network of a window is the whole image's, moved
    windows     how large windows are, where they begin, what each of them gives
"""
