"""Pages for people: the models at `/`, with what happens now, and a model's plans."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from leanconv.pages import document, fact, heading
from leanconv.pages.explain_page import explain_page
from leanconv.server.limits import NOT_FOUND, RefusedError
from leanconv.server.models import ServedModel
from leanconv.server.plans import Group
from leanconv.server.protocol import described
from leanconv.server.service import Service
from leanconv.units import format_bytes, format_ns, shape_text

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
    report = group.plans[group.sizes[-1]].report(front=False)
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
        plan = group.plans[group.sizes[-1]].plan
        shapes = ", ".join(shape_text(kind.shape) for kind in plan.inputs.values())
        where = f"/plans/{quote(model.name)}/{quote(model.version)}/{number}"
        sizes = f", batches of {', '.join(map(str, group.sizes))}" if group.batched else ""
        links.append(f"<a href='{where}'>{escape(shapes)}</a>{sizes}")
    return "planned: " + ("; ".join(links) or "nothing yet")
