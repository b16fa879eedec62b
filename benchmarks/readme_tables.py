"""Write the tables of README.md and pages of docs (`PAGES`) from docs/results.

Every kind of CPU that has a result has its table, under a line with its name, the day, the commit
and how much was measured; the newest comes first.

python benchmarks/readme_tables.py            rewrite them
python benchmarks/readme_tables.py --check    exit with 3 if one is not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness import RESULTS, ROOT, all_results
from pages import scale
from pages.serving import bad_table, serving_table
from pages.tables import measured_on, table
from pages.wrapping import wrapped

Document = dict[str, Any]
DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    DOCS / "performance.md",
    DOCS / "results" / "serving.md",
    DOCS / "results" / "speed.md",
    DOCS / "scale.md",
)
INDEX = RESULTS / "README.md"
DIFFERS = 1e-4  # an engine whose answers are farther from float64 does not count as the best other
SUMMARY = {
    "MobileNetV2, ResNet-50, ResNet-101, VGG-16": ("networks", "networks_large"),
    "convolutions of the MEC paper, batch 1": ("layers",),
    "the same, batch 8": ("layers_batch8",),
    "the same, float64": ("layers_float64",),
    "layers of 30 known networks": ("layers_networks",),
}
# By folder, the work of each network at the measured peak, in ms, and the ratio that is wanted.
FLOORS_OF = "amd-epyc-25-17"
FLOORS = {
    "mobilenetv2 batch 1": ("2.80", "1.35"),
    "mobilenetv2 batch 8": ("22.4", "1.5"),
    "resnet50 batch 1": ("27.5", "1.5"),
    "resnet101 batch 1": ("50.2", "1.5"),
    "vgg16 batch 1": ("46.9 and 7.1 for 411 MB", "2.2"),
}


def _load(name: str) -> dict[str, Document]:
    """By folder, the results of that name; the newest first."""
    return {file.parent.name: json.loads(file.read_text("utf-8")) for file in all_results(name)}


def each(name: str, written: Callable[[Document], list[str]]) -> list[str]:
    """A table for each kind of CPU that has the result."""
    lines: list[str] = []
    for document in _load(name).values():
        lines += [*wrapped(measured_on(document)).splitlines(), "", *written(document), ""]
    return lines[:-1] or ["Not measured yet."]


def beside(of: Callable[[Document, Document], list[str]]) -> list[str]:
    """A table for each kind of CPU whose `scale.json` has times of networks beside it."""
    networks, lines = _load("networks"), list[str]()
    for folder, document in _load("scale").items():
        if folder in networks:
            lines += [*wrapped(measured_on(document)).splitlines(), ""]
            lines += [*of(document, networks[folder]), ""]
    return lines[:-1] or ["Not measured yet."]


def _time(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms" if ns < 1e8 else f"{ns / 1e6:.0f} ms"


def cases_table(document: Document, first: str) -> list[str]:
    """The table of networks or layers: every engine's time, and the ratio to the best other one."""
    engines = list(dict.fromkeys(e for case in document["cases"] for e in case["engines"]))
    rows, ratios = [], []
    for case in document["cases"]:
        times = [
            _time(case["engines"][e]["median_ns"]) if e in case["engines"] else "-" for e in engines
        ]
        ratios.append(case["ratios"]["best"])
        label = case["name"].split(" mb")[0]
        rows.append([label, *times, f"{case['ratios']['best']:.2f}"])
    rows.append(["geometric mean", *[""] * len(engines), f"{geometric_mean(ratios):.2f}"])
    return table([first, *engines, "best other / ours"], rows)


def layers_table(document: Document, first: str) -> list[str]:
    """The table of layers, and below it how far each engine is from the exact result at most."""
    worst: dict[str, float] = {}
    for case in document["cases"]:
        for engine, found in case["engines"].items():
            worst[engine] = max(worst.get(engine, 0.0), found.get("difference") or 0.0)
    shown = ", ".join(f"{engine} {error:.1e}" for engine, error in worst.items())
    errors = wrapped(f"Largest errors against float64: {shown}.").splitlines()
    return [*cases_table(document, first), "", *errors]


def summary_table() -> list[str]:
    """A row for each list of networks or layers: by CPU, the ratio to the best other engine."""
    rows, origins = [], dict[str, list[Document]]()
    for what, names in SUMMARY.items():
        found: dict[str, list[float]] = {}
        for name in names:
            for folder, document in _load(name).items():
                origins.setdefault(folder, []).append(document["machine"])
                ratios = found.setdefault(folder, [])
                ratios += [case["ratios"]["best"] for case in document["cases"]]
        rows.append((what, found))
    shown = [[what, *(_ratios(found.get(cpu)) for cpu in origins)] for what, found in rows]
    shown.append(["measured", *(_days(machines) for machines in origins.values())])
    heads = [machines[0]["cpu"] for machines in origins.values()]
    return table(["geometric mean (cases; least)", *heads], shown)


def _days(machines: list[Document]) -> str:
    """The days and commits of results."""
    days = dict.fromkeys(machine["time_utc"][:10] for machine in machines)
    commits = dict.fromkeys(machine["commit"] or "unknown" for machine in machines)
    return f"{', '.join(days)}, commit {', '.join(commits)}"


def _ratios(found: list[float] | None) -> str:
    return f"{geometric_mean(found):.2f} ({len(found)}; {min(found):.2f})" if found else "-"


def families_table(document: Document) -> list[str]:
    """The layers of many networks, one row for each network and one for all."""
    families: dict[str, list[float]] = {}
    for case in document["cases"]:
        families.setdefault(case["name"].split("/")[0], []).append(case["ratios"]["best"])
    families = dict(sorted(families.items()))
    families["all"] = [ratio for ratios in families.values() for ratio in ratios]
    rows = [
        [
            family,
            str(len(ratios)),
            f"{geometric_mean(ratios):.2f}",
            f"{sum(ratio >= 1 for ratio in ratios) / len(ratios):.0%}",
            f"{min(ratios):.2f}",
        ]
        for family, ratios in families.items()
    ]
    return table(["layers of", "layers", "best other / ours", "level or above", "least"], rows)


def memory_table(document: Document) -> list[str]:
    """The table of `float64_memory.json`: bytes beyond the tensors, and times."""
    rows = []
    for case in document["cases"]:
        torch, ours = case["engines"]["torch"], case["engines"]["leanconv"]
        held = torch["bytes"], ours["bytes"] + case["weight_bytes"], ours["bytes"]
        times = [_time(each["median_ns"]) for each in (torch, ours)]
        row = [case["name"], *(f"{max(0, each) / 2**20:.2f} MiB" for each in held), *times]
        rows.append([*row, f"{case['ratios']['median']:.2f}"])
    rows.append(["geometric mean", *[""] * 5, f"{document['summary']['median']:.2f}"])
    held_by = ["torch: process beyond x, w, y", "leanconv: plan, packed weights in it"]
    first = ["layer, float64", *held_by, "of these, beyond w's bytes", "torch", "leanconv"]
    return table([*first, "torch / ours"], rows)


def contention_table(document: Document) -> list[str]:
    """The table of `contention.json`: medians, quiet and with one CPU taken."""
    rows = [
        [name, _time(e["quiet_median_ns"]), _time(e["disturbed_median_ns"]), f"{e['ratio']:.2f}"]
        for name, e in document["engines"].items()
    ]
    return table(["engine", "quiet", "one CPU taken", "ratio"], rows)


def startup_table(document: Document) -> list[str]:
    """The table of `startup.json`: from the file to the first answer."""
    rows = [
        [name, _time(e["load_ns"]), _time(e["first_ns"]), _time(e["total_ns"])]
        for name, e in document["results"].items()
    ]
    return table(["engine", "load", "first run", "together"], rows)


def bounds_table(*names: str) -> list[str]:
    """Networks beside their floors: the best other engine by its median, and by its least time."""
    rows = []
    for case in (case for name in names for case in _load(name)[FLOORS_OF]["cases"]):
        ours = case["engines"]["leanconv"]
        others = {e: t for e, t in case["engines"].items() if e != "leanconv" and "least_ns" in t}
        others = {e: t for e, t in others.items() if not (t.get("difference") or 0) > DIFFERS}
        row = [case["name"], f"{ours['median_ns'] / 1e6:.3g}, {ours['least_ns'] / 1e6:.3g}"]
        row.append(FLOORS[case["name"]][0])
        for key in ("median_ns", "least_ns"):
            engine = min(others, key=lambda e: float(others[e][key]))
            row.append(f"{others[engine][key] / 1e6:.3g} {engine}")
        least = min(t["least_ns"] for t in others.values()) / ours["least_ns"]
        rows.append([*row, f"{case['ratios']['best']:.2f} ({least:.2f})", FLOORS[case["name"]][1]])
    heads = ["network", "ours, ms: median, least", "floor, ms", "best other's median, ms"]
    return table([*heads, "best other's least, ms", "ratio (of least times)", "wanted"], rows)


def index() -> str:
    """The page of all results: by kind of CPU its files, with day and commit."""
    lines = [
        "# Results",
        "",
        "By kind of machine; written by `python benchmarks/readme_tables.py`.",
        "",
    ]
    folders = {file.parent for file in RESULTS.rglob("*.json")}
    for folder in sorted(f for f in folders if f.name != "figures"):
        rows = []
        for file in sorted(folder.glob("*.json")):
            machine = json.loads(file.read_text("utf-8"))["machine"]
            page = file.with_suffix(".md")
            target = (page if page.exists() else file).relative_to(RESULTS)
            day, commit = machine["time_utc"][:10], machine["commit"] or "unknown"
            rows.append([f"[{file.stem}]({target})", day, commit, machine["cpu"]])
        heads = ["result", "measured", "commit", "CPU"]
        title = "Of no CPU alone" if folder == RESULTS else str(folder.relative_to(RESULTS))
        lines += [f"## {title}", "", *table(heads, rows), ""]
        if (folder / "figures" / "README.md").exists():
            figures = (folder / "figures" / "README.md").relative_to(RESULTS)
            lines += [f"[The documents' figures]({figures}), re-made.", ""]
    return wrapped("\n".join(lines).rstrip())


def written() -> dict[Path, str]:
    """By file, what the results say that it should be."""
    pages = {page: rewritten(page.read_text("utf-8")) for page in PAGES}
    return {**pages, INDEX: index()}


def rewritten(text: str) -> str:
    """A page's text with every marked table as the results say.

    A table stands between `<!-- results: NAME -->` and `<!-- end of results -->`.
    """
    makers: dict[str, Callable[[Document], list[str]]] = {
        "networks": partial(cases_table, first="network, batch"),
        "networks_large": partial(cases_table, first="network, batch"),
        "pruned_networks": partial(cases_table, first="network, zeros"),
        "layers": partial(layers_table, first="layer, batch 1"),
        "layers_close": partial(layers_table, first="layer, batch 1"),
        "layers_batch8": partial(layers_table, first="layer, batch 8"),
        "layers_float64": partial(layers_table, first="layer, float64"),
        "float64_memory": memory_table,
        "layers_networks": families_table,
        "contention": contention_table,
        "serving": serving_table,
        "serving_bad": bad_table,
        "startup": startup_table,
    }
    tables = {name: each(name, of) for name, of in makers.items()}
    tables |= {name: beside(of) for name, of in scale.TABLES.items()}
    tables["summary"] = summary_table()
    tables["bounds"] = bounds_table("networks", "networks_large")
    out: list[str] = []
    skipping = False
    for line in text.splitlines():
        if line.startswith("<!-- end of results"):
            skipping = False
        if not skipping:
            out.append(line)
        if line.startswith("<!-- results: "):
            out += tables[line.split()[2]]
            skipping = True
    return "\n".join(out) + "\n"


def main() -> int:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = {
        page: text
        for page, text in written().items()
        if not page.exists() or page.read_text("utf-8") != text
    }
    for page, text in stale.items():
        if options.check:
            print(f"{page.relative_to(ROOT)} is not what the results say; run this without --check")
        else:
            page.write_text(text, "utf-8")
    return 3 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
