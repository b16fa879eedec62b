"""What belongs to one process: memory that kernels work in, code that was loaded, a device."""

from __future__ import annotations

from typing import ClassVar, NoReturn, SupportsIndex

from leanconv.errors import UnsupportedError


class Unpicklable:
    """A base of classes whose objects cannot be sent: trying to says what to send instead.

    Attributes:
        instead: the end of that message.
    """

    instead: ClassVar[str]

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UnsupportedError(
            f"a {type(self).__name__} cannot be pickled or copied: what it is made of belongs to "
            f"this process and machine; {self.instead}"
        )
