"""A server of networks: the Open Inference Protocol v2 over HTTP, batches, bounded memory.

`leanconv serve` (`cli/serve`) is its command line. From a request to an answer:

    connections ─▶ app ─▶ protocol ─▶ service ─▶ batching ─▶ plans ─▶ a compiled network
    slow ones cut         bytes to arrays        one thread    bytes known

It needs the extra `leanconv[server]`, which `app`, `connections` and `service` import.
"""

from __future__ import annotations

from importlib.util import find_spec

from leanconv.errors import MissingExtraError

PACKAGES = ("starlette", "uvicorn", "h11", "prometheus_client")


def require() -> None:
    """Refuse to go on without the extra.

    Raises:
        MissingExtraError: one of its packages is not installed.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        raise MissingExtraError(
            f"the server needs {', '.join(missing)}, which {are} not installed: "
            "pip install 'leanconv[server]'"
        )
