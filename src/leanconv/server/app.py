"""The server's addresses: the Open Inference Protocol v2, metrics, and pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from leanconv import __version__
from leanconv.errors import LeanConvError
from leanconv.pages import document, explain_page, fact, heading
from leanconv.server.connections import Exchange, Scope, Send, refusal_response
from leanconv.server.limits import (
    BAD,
    BRACKET_BYTES,
    BUSY,
    FAILED,
    JSON_FACTOR,
    NOT_FOUND,
    RefusedError,
    refusal,
)
from leanconv.server.models import ServedModel
from leanconv.server.plans import Group
from leanconv.server.protocol import decode, described, encode
from leanconv.server.service import CONTENT_TYPE, GoneError, Receive, Service
from leanconv.units import format_bytes, format_ns, shape_text

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
# Reads /status each second; names of models never become HTML here.
_SCRIPT = """
function say(id, text) { const at = document.getElementById(id); if (at) at.textContent = text; }
async function look() {
  try {
    const status = await (await fetch("/status")).json();
    for (const [id, text] of Object.entries(status.shown)) say(id, text);
    say("live", "live");
  } catch (error) { say("live", "no answer: " + error); }
  setTimeout(look, 1000);
}
look();
"""
_NUMBERS = ("answered", "p50", "p99", "bytes")  # of a model, in columns


def application(service: Service, local: bool) -> Any:
    """The ASGI application.

    Args:
        service: answers the requests.
        local: whether requests must name this machine as their host, so that no page of the
            internet can make a browser on it send some.
    """
    pages = Pages(service)
    infer = Infer(service)
    model = "/v2/models/{name}"
    routes = [
        Route("/v2/health/live", _live),
        Route("/v2/health/ready", _ready),
        Route("/v2", _server),
        Route("/v2/repository/index", _index(service), methods=["POST"]),
        Route("/metrics", _metrics(service)),
        *pages.routes(),
    ]
    for prefix in (model, model + "/versions/{version}"):
        routes += [
            Route(prefix + "/infer", infer, methods=["POST"]),
            Route(prefix + "/ready", _model_ready(service)),
            Route(prefix, _metadata(service)),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    handlers = {RefusedError: _refused, HTTPException: _not_offered(routes), Exception: _failed}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return _OnlyLocal(app) if local else app


# -- what is not inference -------------------------------------------------------------------------
async def _live(_: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(_: Request) -> Response:
    return JSONResponse({"ready": True})


async def _server(_: Request) -> Response:
    extensions = ["binary_tensor_data", "model_repository"]
    return JSONResponse({"name": "leanconv", "version": __version__, "extensions": extensions})


def _metrics(service: Service) -> Any:
    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    return metrics


def _index(service: Service) -> Any:
    async def index(_: Request) -> Response:
        rows = [
            {"name": each.name, "version": each.version, "state": "READY", "reason": ""}
            for each in service.models
        ]
        return JSONResponse(rows)

    return index


def _named(service: Service, parameters: Mapping[str, str]) -> ServedModel:
    return service.models.found(parameters["name"], parameters.get("version"))


def _model_ready(service: Service) -> Any:
    async def ready(request: Request) -> Response:
        found = _named(service, request.path_params)
        return JSONResponse({"name": found.name, "ready": True})

    return ready


def _metadata(service: Service) -> Any:
    async def metadata(request: Request) -> Response:
        found = _named(service, request.path_params)
        return JSONResponse(found.metadata(service.models.versions(found.name)))

    return metadata


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return refusal_response(error)


def _not_offered(routes: Iterable[Route]) -> Any:
    """Answers requests for addresses that there are not, or not for their method."""
    offered = ", ".join(
        f"{'POST' if 'POST' in methods else 'GET'} {route.path_format}"
        for route in routes
        for methods in (route.methods or (),)
    )

    async def not_offered(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        expected = " or ".join(sorted(allowed.split(", "))) + " there" if allowed else offered
        text = f"got {request.method} {request.url.path[:200]}; expected {expected}"
        return JSONResponse({"error": text}, error.status_code, error.headers)

    return not_offered


async def _failed(_: Request, error: Exception) -> Response:
    text = f"a defect of leanconv ({type(error).__name__}); the server's log says more"
    response = refusal_response(RefusedError(FAILED, text))
    response.headers["connection"] = "close"  # uvicorn closes it: no request may follow on it
    return response


class _OnlyLocal:
    """Requests are refused that name another host, as one is to which a page's name was bound, or
    that a page of another host sends (its origin)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            for what, default in (("host", "localhost"), ("origin", "http://localhost")):
                given = headers.get(what, default)
                if not _is_local(given.partition("://")[2] or given):
                    error = RefusedError(BAD, f"got the {what} {given[:100]!r}; expected localhost")
                    await refusal_response(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _is_local(host: str) -> bool:
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.lower() in _LOCAL_NAMES


# -- inference -------------------------------------------------------------------------------------
class Infer:
    """POST …/infer."""

    def __init__(self, service: Service) -> None:
        self._service, self._limits = service, service.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever comes; count it."""
        begin = time.monotonic_ns()
        exchange = Exchange(scope, receive, send, self._limits)
        model, status = None, 499  # what logs of servers have for a client that has gone
        try:
            model = _named(self._service, scope["path_params"])
            await self._answer(model, exchange)
            status = 200
            model.answered_in(time.monotonic_ns() - begin)
        except RefusedError as error:
            status = error.status
            await exchange.refuse(error)
        except GoneError:
            return
        except MemoryError:
            status = BUSY
            said = "there is no memory for the request now; try again later"
            await exchange.refuse(RefusedError(BUSY, said, retry_s=1))
        except Exception:
            status = FAILED  # Starlette answers and logs it
            raise
        finally:
            self._service.metrics.answered(model, status, time.monotonic_ns() - begin)

    async def _answer(self, model: ServedModel, exchange: Exchange) -> None:
        service, plans = self._service, model.plans
        with service.requests.share() as share:
            length, json_length = exchange.lengths()
            parsing = json_length * JSON_FACTOR
            share.take(length + parsing)
            model.expected += 1
            try:
                body = await exchange.body(length, json_length)
                nested = _bracket_bytes(body[:json_length])
                share.take(nested)
                parsing += nested
                asked = decode(body, json_length, plans.inputs, plans.outputs)
            finally:
                model.expected -= 1
            share.give(parsing)
            share.take(sum(array.nbytes for array in asked.arrays))
            results = await service.results(
                model, asked, share, exchange.receive, exchange.deadline
            )
            head = {"model_name": model.name, "model_version": model.version}
            if asked.id is not None:
                head["id"] = asked.id
            text, json_bytes = encode(head, asked.outputs, plans.outputs, results)
            del results  # views of a whole batch, which a client that reads slowly must not hold
            await exchange.answer(text, json_bytes)


def _bracket_bytes(text: memoryview) -> int:
    """Bytes of the lists and objects of JSON beyond those of its numbers."""
    held = bytes(text)
    return (held.count(b"[") + held.count(b"{")) * BRACKET_BYTES


class Pages:
    """The pages of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made: weakref.WeakKeyDictionary[Group, str] = weakref.WeakKeyDictionary()
        self._making = asyncio.Lock()

    def routes(self) -> list[Route]:
        """The routes of all pages."""
        return [
            Route("/", self._index),
            Route("/status", self._status),
            Route("/page.js", self._script),
            Route("/plans/{name}/{version}/{number:int}", self._plan),
        ]

    async def _script(self, _: Request) -> Response:
        return Response(_SCRIPT, headers={**_HEADERS, "content-type": "text/javascript"})

    async def _status(self, _: Request) -> Response:
        status = self._service.status()
        return JSONResponse({**status, "shown": _shown(status)}, headers=_HEADERS)

    async def _index(self, _: Request) -> Response:
        return HTMLResponse(index_page(self._service), headers=_HEADERS)

    async def _plan(self, request: Request) -> Response:
        """The page that `leanconv explain --html` writes, of a group's largest batch."""
        parameters = request.path_params
        model = self._service.models.found(parameters["name"], parameters["version"])
        groups = model.plans.groups()
        number = parameters["number"]
        if number >= len(groups):
            raise RefusedError(NOT_FOUND, f"there are {len(groups)} plans, from 0")
        group = groups[number][1]
        async with self._making:  # one at a time: each takes a while
            page = self._made.get(group)
            if page is None:
                page = await asyncio.to_thread(_explained, model, group)
                self._made[group] = page
        return HTMLResponse(page, headers=_HEADERS)


def _explained(model: ServedModel, group: Group) -> str:
    try:
        report = group.plans[group.sizes[-1]].report(front=False)
    except LeanConvError as error:  # the file of one from a snapshot was written to
        raise refusal(error) from error
    return explain_page(f"{model.name} on leanconv", report)


def _shown(status: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of the page as text, by the identities of their elements."""
    found = {
        "waiting": str(status["waiting"]),
        "request-bytes": format_bytes(status["request_bytes"]),
    }
    for number, now in enumerate(status["models"]):
        times = [now["p50_ns"], now["p99_ns"]]
        texts = [str(now["answered"]), *("-" if t is None else format_ns(t) for t in times)]
        names = (f"{what}-{number}" for what in _NUMBERS)
        found.update(zip(names, (*texts, format_bytes(now["plan_bytes"])), strict=True))
    return found


def index_page(service: Service) -> str:
    """The page of all models, as text; its numbers are those of this moment."""
    limit = service.limits.memory_bytes
    shown = _shown(service.status())
    facts = [
        fact("memory limit", "none" if limit is None else format_bytes(limit)),
        fact("requests in flight", shown["request-bytes"], "request-bytes"),
        fact("waiting", shown["waiting"], "waiting"),
        fact("this page", "as it was when it was loaded", "live"),
    ]
    titles = ("model", "version", "inputs", "outputs", "answered", "median", "99 %", "memory")
    rows = []
    for number, model in enumerate(service.models):
        plans = model.plans
        numbers = (f"{what}-{number}" for what in _NUMBERS)
        cells = [
            f"<td>{escape(model.name)}</td><td class=text>{escape(model.version)}</td>",
            f"<td class=text>{_ports(plans.inputs)}</td>",
            f"<td class=text>{_ports(plans.outputs)}</td>",
            *(f"<td id={identity}>{shown[identity]}</td>" for identity in numbers),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
        rows.append(f"<tr class=more><td colspan={len(titles)}>{_plans(model)}</td></tr>")
    parts = [
        f"<dl>{''.join(facts)}</dl>",
        "<h2>Models</h2>",
        f"<table>{heading(*titles, text=titles[:4])}{''.join(rows)}</table>",
        "<p class=note>Latency is that of the last 1000 requests, from their headers to the "
        "answer. Counters: <a href='/metrics'>/metrics</a>.</p>",
        "<script src='/page.js'></script>",
    ]
    return document("leanconv serve", parts)


def _ports(specs: Any) -> str:
    shapes = zip(specs, described(specs), strict=True)
    return ", ".join(
        f"{escape(spec.name)} {escape(shape_text(spec.shape))} {port['datatype']}"
        for spec, port in shapes
    )


def _plans(model: ServedModel) -> str:
    links = []
    for number, (_, group) in enumerate(model.plans.groups()):
        plan = group.plans[group.sizes[-1]]
        shapes = ", ".join(shape_text(kind.shape) for kind in plan.inputs.values())
        where = f"/plans/{quote(model.name)}/{quote(model.version)}/{number}"
        sizes = f", batches of {', '.join(map(str, group.sizes))}" if group.batched else ""
        links.append(f"<a href='{where}'>{escape(shapes)}</a>{sizes}")
    return "planned: " + ("; ".join(links) or "nothing yet")
