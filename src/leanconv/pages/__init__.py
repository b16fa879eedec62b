"""Pages of HTML about plans, which the command line writes and the server shows.

They share style, facts and tables; they have no script, and load nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --fore: #1b1f24; --back: #ffffff; --soft: #f2f4f7;
  --line: #c9d1d9; --mark: #c2410c; --value: #4f7cac; --scratch: #d9a441; --dim: #667085; }
@media (prefers-color-scheme: dark) { :root { --fore: #e6e8eb; --back: #14171a; --soft: #1e2328;
  --line: #3a424b; --mark: #fb923c; --value: #6d9bd1; --scratch: #e0b354; --dim: #98a2b3; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fore); background: var(--back);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 0; }
dt { color: var(--dim); font-size: .85rem; } dd { margin: 0; font-size: 1.1rem; }
svg { width: 100%; height: auto; background: var(--soft); border-radius: 6px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
rect.value { fill: var(--value); } rect.scratch { fill: var(--scratch); }
rect { stroke: var(--back); stroke-width: .6; } rect:hover { stroke: var(--fore); }
line.axis { stroke: var(--line); } line.mark, path.mark { stroke: var(--mark); fill: none; }
path.curve { stroke: var(--value); stroke-width: 2; fill: none; }
circle { fill: var(--value); } circle.mark { fill: var(--mark); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { padding: .15rem .6rem; text-align: right; vertical-align: top; }
td:first-child, th:first-child, td.text, th.text { text-align: left; }
tr { border-top: 1px solid var(--line); } .bar { display: inline-block; height: .6rem;
  background: var(--value); vertical-align: middle; }
details > summary { cursor: pointer; }
details table { margin: .3rem 0 .8rem 1rem; color: var(--dim); }
td { white-space: nowrap; } tr.more { border: 0; color: var(--dim); }
tr.chosen { color: var(--mark); } p.note { color: var(--dim); }
[title] > dt { text-decoration: underline dotted; cursor: help; }
@media (max-width: 45rem) { td, th { padding: .15rem .3rem; } td.text, th { white-space: normal; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
  .bar, .layers > tbody > tr > :is(:nth-child(2), :nth-child(4), :nth-child(6)) { display: none; }
  table { font-size: .8rem; } details { max-width: 80vw; overflow-x: auto; }
  details table { width: max-content; }
  details :is(td, th):not(:first-child) { white-space: nowrap; } }
"""
_TEXT = " class=text"


def document(title: str, parts: Sequence[str]) -> str:
    """The whole page of a title and of parts that are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *parts])
        + "\n</html>\n"
    )


def fact(name: str, value: str, identity: str = "", about: str = "") -> str:
    """A name and a value of a list of facts, `<dl>`; a script finds the value by its identity.

    What a fact is about is shown where the pointer rests on it.
    """
    found = f" id={identity}" if identity else ""
    title = f' title="{escape(about)}"' if about else ""
    return f"<div{title}><dt>{escape(name)}</dt><dd{found}>{escape(value)}</dd></div>"


def heading(*names: str, text: Collection[str] = ()) -> str:
    """The first row of a table; columns are of numbers, but for the first one and those of text."""
    return "<tr>" + "".join(f"<th{_TEXT * (n in text)}>{n}</th>" for n in names) + "</tr>"
