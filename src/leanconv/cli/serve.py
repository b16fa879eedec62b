"""`leanconv serve MODEL…`: answer requests over HTTP, by the Open Inference Protocol v2."""

from __future__ import annotations

import argparse
import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leanconv.cli import EXIT_OK
from leanconv.cli.options import (
    Shape,
    add_load_options,
    byte_count,
    duration,
    load_options,
    named_shape,
    named_value,
    not_negative,
    positive,
)
from leanconv.cli.output import complain, one_line, progress
from leanconv.errors import InputError
from leanconv.files import reason
from leanconv.server.limits import MOST_BATCH, Limits
from leanconv.units import format_bytes, format_ns

if TYPE_CHECKING:
    from leanconv.server.models import Models

_LIMITS = Limits()
_PORT = 8000
_REQUEST_SHARE = 4  # of a memory limit one part in as many is for requests, if nothing else is said
HELP = "answer requests over HTTP (needs leanconv[server])"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="ONNX files, libraries of `leanconv compile`, NAME=FILE, or folders of NAME.onnx and "
        "NAME/VERSION/model.onnx",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=_port, default=_PORT, help=f"0 is any (default: {_PORT})")
    _add_plan_options(parser)
    _add_limits(parser)


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    add_load_options(
        parser,
        ("threads", "precision", "max_error", "shared_weights", "memory_limit"),
        memory_limit="the most that all models and all requests in flight may take together",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=_shape_of_model,
        default=[],
        metavar="[MODEL:][NAME=]NxCxHxW",
        help="input shape to plan before the server starts, where the model leaves it open; sizes "
        "stay open, and other shapes are served, too",
    )
    parser.add_argument(
        "--value",
        action="append",
        type=_value_of_model,
        default=[],
        metavar="[MODEL:]NAME=N[,N]",
        help="value of a small integer input, such as a sampling rate, that decides what is "
        "planned before the server starts; other values are served, too",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for option, (name, read, metavar, text) in _FLAGS.items():
        usual = getattr(_LIMITS, name)
        shown = str(usual)
        if name.endswith("_bytes"):
            shown = format_bytes(usual)
        elif name.endswith("_ns"):
            shown = format_ns(usual)
        default: str | None = shown
        if name == "request_bytes":
            default, shown = None, f"a quarter of the memory limit, else {shown}"
        parser.add_argument(
            option,
            dest=name,
            type=read,
            default=default,
            metavar=metavar,
            help=f"{text} (default: {shown})",
        )


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    from leanconv.server import require

    require()
    from leanconv.server.app import application
    from leanconv.server.connections import server
    from leanconv.server.service import Service

    limits = limits_of(options)
    with progress("loading"):
        models = _loaded(options, limits)
    made = _listening(options.host, options.port)
    host, port = made.getsockname()[:2]
    local = host in ("127.0.0.1", "::1")
    service = Service(models, limits)
    shown = f"[{host}]" if ":" in host else host
    _say(f"serving on http://{shown}:{port}")
    before = {each: signal.signal(each, _stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        server(application(service, local), limits).run(sockets=[made])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return EXIT_OK


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: the address cannot be had.
    """
    from leanconv.server.connections import listening

    try:
        return listening(host, port)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port}: {reason(error)}; give another --port or --host"
        ) from error


def _stop(_signum: int, _frame: Any) -> None:
    """Do nothing: uvicorn has already obeyed the signal."""


def _say(text: str) -> None:
    complain(f"leanconv: {one_line(text)}")


def _loaded(options: argparse.Namespace, limits: Limits) -> Models:
    from leanconv.server.models import loaded, sources

    shapes: dict[str, list[dict[str, Shape]]] = {}
    for model, name, shape in options.shape:
        groups = shapes.setdefault(model, [{}])
        if name in groups[-1]:
            groups.append({})
        groups[-1][name] = shape
    values: dict[str, dict[str, tuple[int, ...]]] = {}
    for model, name, numbers in options.value:
        values.setdefault(model, {})[name] = numbers
    given = load_options(options)
    return loaded(sources(options.models), given, shapes, limits, _say, values)


def limits_of(options: argparse.Namespace) -> Limits:
    """The limits that options ask for.

    Raises:
        InputError: they contradict each other, or a batch is too large.
    """
    if options.batch > MOST_BATCH:
        raise InputError(
            f"--max-batch is {options.batch}; expected an integer from 1 to {MOST_BATCH}"
        )
    limit, requests = options.memory_limit, options.request_bytes
    share = _REQUEST_SHARE if requests is None else None
    if requests is None:
        requests = _LIMITS.request_bytes if limit is None else limit // _REQUEST_SHARE
    if limit is not None and requests >= limit:
        raise InputError(
            f"--request-memory {requests} leaves nothing of --memory-limit {limit}; give less"
        )
    given = {name: getattr(options, name) for name, *_ in _FLAGS.values()}
    given["request_bytes"] = requests
    return Limits(**given, memory_bytes=limit, request_share=share)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _shape_of_model(text: str) -> tuple[str, str, Shape]:
    """Read `MODEL:NAME=1x3x224x224`, either of both names left out (an argparse type)."""
    model, colon, rest = text.rpartition(":")
    return (model if colon else "", *named_shape(rest if colon else text))


def _value_of_model(text: str) -> tuple[str, str, tuple[int, ...]]:
    """Read `MODEL:NAME=16000`, the model's name left out (an argparse type)."""
    model, colon, rest = text.rpartition(":")
    return (model if colon else "", *named_value(rest if colon else text))


_FLAGS: Mapping[str, tuple[str, Callable[[str], Any], str, str]] = {  # of fields of `Limits`
    "--max-batch": (
        *("batch", positive, "N"),
        "images of several requests that are computed together",
    ),
    "--max-delay": (
        *("delay_ns", duration, "TIME"),
        "how long a request may wait for others that are being read",
    ),
    "--max-shapes": (
        *("groups", _count, "N"),
        "new shapes of a model that stay planned; with 0, requests of new shapes are refused",
    ),
    "--max-body": (
        *("body_bytes", byte_count, "BYTES"),
        "the most that the body of a request may have",
    ),
    "--max-json": (
        *("json_bytes", byte_count, "BYTES"),
        "the most that JSON in it, or in its answer, may have",
    ),
    "--request-memory": (
        *("request_bytes", byte_count, "BYTES"),
        "the most that all requests in flight may take",
    ),
    "--max-queue": ("queued", positive, "N", "requests that wait for their turn"),
    "--max-connections": ("connections", positive, "N", "connections that are open at a time"),
    "--timeout": ("request_s", positive, "N", "seconds from a request to its answer"),
    "--plan-timeout": (
        *("plan_s", not_negative, "N"),
        "seconds that a request waits until its shape is planned, before it is told to try again",
    ),
}
