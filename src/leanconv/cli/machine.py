"""`leanconv machine`: what leanconv takes this machine for, and by which record it plans."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any

from leanconv.cli.options import add_output_options
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.cli.table import Column
from leanconv.units import format_bytes

if TYPE_CHECKING:
    from leanconv.target import Target

_RATES = ("l2_read", "l3_read", "dram_read")
HELP = "show what plans are made for, and measure it"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure its rates anew; plans are made with them where the processor has no record",
    )
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    from leanconv.codegen.host import host
    from leanconv.runtime.calibration import is_known, keep, measure, planning_target, this_machine
    from leanconv.runtime.pool import default_threads
    from leanconv.target.costs import numbers, unit_of

    measured: dict[str, Any] | None = None
    known = is_known(host())
    if options.measure:
        with progress("measuring the machine"):
            rates = measure(host())
        measured = asdict(rates)
        if not known:
            keep(host(), rates.rounded(), date.today().isoformat())
            this_machine.cache_clear()
    target = planning_target()
    report = {
        **_facts(target),
        "threads": default_threads(),
        "costs": target.costs_text,
        "record": numbers(target.costs),
        "units": {name: unit_of(name) for name in numbers(target.costs)},
        "sources": [asdict(source) for source in target.costs.sources],
        "measured": measured,
        "measured_is_used": bool(measured and measured["undisturbed"]) and not known,
    }
    if options.json:
        print_json(report)
        return 0
    print_text(
        f"{target.cpu}, {target.isa}: vectors of {target.vector_bytes} bytes, "
        f"{target.registers} registers, {target.fma_units:g} multiply-adds a cycle of "
        f"{target.fma_latency} cycles each\n"
        f"L1 {format_bytes(target.l1_bytes)}, L2 {format_bytes(target.l2_bytes)} a core, "
        f"L3 {format_bytes(target.l3_bytes)}, {report['threads']} threads\n{target.costs_text}"
    )
    if measured is not None:
        _print_measured(measured, target, known)
    if options.wide:
        columns = [
            Column("number", "name"),
            Column("value"),
            Column("unit", "prose"),
            Column("from", "prose"),
        ]
        print_table(columns, _rows(target), title="The record", wide=True)
    return 0


def _facts(target: Target) -> dict[str, Any]:
    return {name: value for name, value in vars(target).items() if name != "costs"}


def _print_measured(measured: dict[str, Any], target: Target, known: bool) -> None:
    rows = [
        [
            name,
            f"{getattr(target.costs, name):g}",
            f"{measured[name]:.3g}" if measured[name] else "-",
        ]
        for name in _RATES
    ]
    columns = [Column("bytes a cycle", "name"), Column("record"), Column("measured")]
    print_table(columns, rows)
    if not measured["undisturbed"]:
        print_text("The core was shared all the time while some of it was measured: try again.")
    elif known:
        print_text("Plans go on with the record, which was fitted to whole layers.")
    else:
        print_text("Kept, rounded to classes: plans are made with it from now on.")


def _rows(target: Target) -> list[list[str]]:
    from leanconv.target.costs import numbers, unit_of

    origin = {
        name: f"{source.date}, {source.machine}: {source.how}"
        for source in target.costs.sources
        for name in source.names
    }
    return [
        [name, str(value), unit_of(name), origin[name]]
        for name, value in numbers(target.costs).items()
    ]
