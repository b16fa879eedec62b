"""Convolutions of PyTorch computed by leanconv on the CPU, forward and backward.

    import leanconv.torch

    model = leanconv.torch.replace(model)  # its convolutions are leanconv's from now on
    y = leanconv.torch.conv2d(x, weight, bias, padding=1)  # as torch.nn.functional.conv2d

PyTorch does all the rest: autograd, optimizers, `state_dict`, `torch.compile`, `torch.export`. What
leanconv does not compute (other devices, other types than float32 and float64, autocast) is
PyTorch's own convolution. It needs the extra `leanconv[torch]`.
"""

from __future__ import annotations

from importlib.util import find_spec

from leanconv.errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError(
        "leanconv.torch needs PyTorch, which is not installed: pip install 'leanconv[torch]'"
    )

from leanconv.torch.functions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from leanconv.torch.modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    replace,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "replace",
]
