"""Modules in the place of PyTorch's convolutions, with the same parameters and `state_dict`.

    model = leanconv.torch.replace(model)

A module becomes one of ours by its class alone: its parameters, hooks and whatever else it has are
the same objects as before, so that optimizers keep what they hold.
"""

from __future__ import annotations

import logging
from typing import ClassVar, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from leanconv.errors import InputError, short
from leanconv.torch import functions

log = logging.getLogger(__name__)

_Module = TypeVar("_Module", bound=nn.Module)


class _Convolution(nn.Module):
    """What a convolution of ours has beside PyTorch's."""

    _convolve: ClassVar[functions.Convolution]

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        padding = self.padding
        if self.padding_mode != "zeros":
            ends = self._reversed_padding_repeated_twice
            input = functional.pad(input, ends, mode=self.padding_mode)  # noqa: A001
            padding = 0
        convolve = type(self)._convolve
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Convolution, nn.Conv1d):
    """`torch.nn.Conv1d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv1d)


class Conv2d(_Convolution, nn.Conv2d):
    """`torch.nn.Conv2d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv2d)


class Conv3d(_Convolution, nn.Conv3d):
    """`torch.nn.Conv3d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv3d)


class _Transposed(nn.Module):
    """What a transposed convolution of ours has beside PyTorch's."""

    _convolve: ClassVar[functions.Convolution]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002
        """Convolve; `output_size` says which of the sizes that are possible y is to have."""
        steps = self.stride, self.padding, self.kernel_size
        rank = len(self.kernel_size)
        more = self._output_padding(input, output_size, *steps, rank, self.dilation)
        given = self.stride, self.padding, more, self.groups, self.dilation
        return type(self)._convolve(input, self.weight, self.bias, *given)


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv_transpose1d)


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv_transpose2d)


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`, computed by leanconv on the CPU."""

    _convolve = staticmethod(functions.conv_transpose3d)


OURS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}


def replace(module: _Module) -> _Module:
    """Let leanconv compute the convolutions of a module and of all modules in it.

    Each becomes one of `leanconv.torch.Conv2d` and so on, in place: parameters, buffers, hooks and
    `state_dict` stay as they are, and a module that lies in several places stays one. Left alone,
    and named in the log, are convolutions of classes of their own: those that a user has derived,
    and lazy ones before they know their sizes.

    Args:
        module: which is changed; a convolution, too.

    Returns:
        The module itself.

    Raises:
        InputError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise InputError(
            f"module is {short(module)}; expected a torch.nn.Module, such as the model itself and "
            "not its class or its state_dict"
        )
    for name, each in module.named_modules():
        ours = OURS.get(type(each))
        if ours is not None:
            each.__class__ = ours
        elif isinstance(each, tuple(OURS)) and type(each) not in OURS.values():
            log.info("%s stays %s: it is a class of its own", name or "the module", type(each))
    return module
