"""Tiles of images larger than memory: where windows may lie so that their bits are the whole's.

A network is run on windows of its inputs, all of one shape. Where a window ends inside the image,
a margin of its results is wrong (the network pads there) and is left out; where it ends at the
image's edge it sees what the whole image sees.

    groups      axes of inputs that are cut together, and why others cannot be; algorithms whose
                sums do not depend on where a window lies
    windows     how large windows are, where they begin, which of their results are right
    layout      windows for an image; whether their network is the whole image's, moved
"""
