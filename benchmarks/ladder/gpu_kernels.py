"""The report's CUDA kernels in Triton: a program is a block, an element of its vectors a thread.

Tensors stand as planes of channels, each with a border of zeros (`kernels.Plane`): `row` and `size`
are elements from one row and one channel to the next, `first` the place of the first pixel. Written
as plainly as the report's: no tensor cores, no shared memory, a chain of multiply-adds a thread.
"""

import triton
import triton.language as tl


@triton.jit
def item_conv(
    x,
    w,
    bias,
    y,
    x_row,
    x_size,
    x_first,
    y_row,
    y_size,
    y_first,
    height,
    width,
    outputs,
    inputs,
    group_outputs,
    stride,
    KERNEL: tl.constexpr,
    BLOCK: tl.constexpr,
    CLIP: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Grid: (blocks of BLOCK x BLOCK pixels, output channels or 1): a thread for each pixel.

    Without PER_CHANNEL a thread computes all output channels of its pixel, one after the other;
    with PLAIN there is no loop over taps.
    """
    items = tl.arange(0, BLOCK * BLOCK)
    blocks = tl.cdiv(width, BLOCK)
    oy = tl.program_id(0) // blocks * BLOCK + items // BLOCK
    ox = tl.program_id(0) % blocks * BLOCK + items % BLOCK
    live = (oy < height) & (ox < width)
    at = x_first + oy * stride * x_row + ox * stride
    to = y_first + oy * y_row + ox
    begin = 0
    end = outputs
    if PER_CHANNEL:
        begin = tl.program_id(1)
        end = begin + 1
    for k in range(begin, end):
        channel = k // group_outputs * inputs
        acc = tl.zeros((BLOCK * BLOCK,), y.dtype.element_ty) + tl.load(bias + k)
        for c in range(inputs):
            place = at + (channel + c) * x_size
            if PLAIN:
                value = tl.load(x + place, live, 0.0)
                acc += value * tl.load(w + k * inputs + c)
            else:
                for tap in range(KERNEL * KERNEL):
                    value = tl.load(x + place + tap // KERNEL * x_row + tap % KERNEL, live, 0.0)
                    acc += value * tl.load(w + (k * inputs + c) * KERNEL * KERNEL + tap)
        if CLIP:
            acc = tl.minimum(tl.maximum(acc, 0.0), 6.0)
        tl.store(y + to + k * y_size, acc, live)


@triton.jit
def item_part(
    x, w, y, x_row, x_size, x_first, y_row, y_size, height, width, outputs, inputs, each,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of pixels, output channels, parts): sums of a part of the input channels."""
    items = tl.arange(0, BLOCK * BLOCK)
    blocks = tl.cdiv(width, BLOCK)
    oy = tl.program_id(0) // blocks * BLOCK + items // BLOCK
    ox = tl.program_id(0) % blocks * BLOCK + items % BLOCK
    live = (oy < height) & (ox < width)
    k = tl.program_id(1)
    part = tl.program_id(2)
    acc = tl.zeros((BLOCK * BLOCK,), y.dtype.element_ty)
    for c in range(part * each, tl.minimum(part * each + each, inputs)):
        value = tl.load(x + x_first + oy * x_row + ox + c * x_size, live, 0.0)
        acc += value * tl.load(w + k * inputs + c)
    tl.store(y + (part * outputs + k) * y_size + oy * y_row + ox, acc, live)


@triton.jit
def tree_sum(
    x, bias, y, x_size, y_row, y_size, y_first, width, pixels, outputs, parts,
    PARTS: tl.constexpr, CLIP: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of pixels, output channels): the parts of each pixel, added in a tree."""
    i = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    k = tl.program_id(1)
    part = tl.arange(0, PARTS)
    live = (i < pixels)[None, :] & (part < parts)[:, None]
    terms = tl.load(x + (part * outputs + k)[:, None] * x_size + i[None, :], live, 0.0)
    acc = tl.sum(terms, 0) + tl.load(bias + k)
    if CLIP:
        acc = tl.minimum(tl.maximum(acc, 0.0), 6.0)
    to = y_first + i // width * y_row + i % width + k * y_size
    tl.store(y + to, acc, i < pixels)


@triton.jit
def item_add(
    a, b, y, a_row, a_size, a_first, b_row, b_size, b_first, y_row, y_size, y_first, width, pixels,
    ITEMS: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of pixels, channels): a thread for each element."""
    i = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    c = tl.program_id(1)
    live = i < pixels
    h = i // width
    w = i % width
    left = tl.load(a + a_first + c * a_size + h * a_row + w, live, 0.0)
    right = tl.load(b + b_first + c * b_size + h * b_row + w, live, 0.0)
    tl.store(y + y_first + c * y_size + h * y_row + w, left + right, live)


@triton.jit
def item_mean(x, y, x_row, x_size, x_first, height, width, channels, ITEMS: tl.constexpr):
    """Grid: (blocks of channels,): a thread sums up its channel."""
    c = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    live = c < channels
    acc = tl.zeros((ITEMS,), y.dtype.element_ty)
    for pixel in range(height * width):
        place = x_first + pixel // width * x_row + pixel % width
        acc += tl.load(x + c * x_size + place, live, 0.0)
    tl.store(y + c, acc / (height * width), live)


@triton.jit
def item_dense(x, w, bias, y, inputs, outputs, ITEMS: tl.constexpr):
    """Grid: (blocks of outputs,): a thread for each output; w stands turned, (inputs, outputs)."""
    k = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    live = k < outputs
    acc = tl.load(bias + k, live, 0.0)
    for c in range(inputs):
        acc += tl.load(x + c) * tl.load(w + c * outputs + k, live, 0.0)
    tl.store(y + k, acc, live)
