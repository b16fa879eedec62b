"""Tables of `serving.py` and `serving_bad.py`."""

from __future__ import annotations

from statistics import median
from typing import Any

from leanconv.units import counted
from pages.tables import table
from pages.wrapping import wrapped


def serving_table(document: dict[str, Any]) -> list[str]:
    """Throughput and latencies of the engines behind the same server, medians over rounds."""
    spent, ratios = document["effort"], document["ratios"]
    rows = []
    for engine, found in document["engines"].items():
        worst = max(each["p99_ms"] for each in found["rounds"])
        row = [engine, f"{found['per_second']:.0f}", f"{found['p50_ms']:.0f} ms"]
        row += [f"{found['p99_ms']:.0f} ms", f"{worst:.0f} ms", f"{found['resident_mib']:.0f} MiB"]
        rows.append(row)
    said = (
        f"{counted(spent['clients'], 'client')}, {document['network']}, images of "
        f"{document['shape']} as raw tensors, batches of up to {spent['max_batch']}, a delay of at "
        f"most {spent['max_delay']}. leanconv answers {document['ratio']:.2f} times as many "
        f"requests as ONNX Runtime ({min(ratios):.2f} to {max(ratios):.2f} by rounds)."
    )
    heads = ["behind the same server", "requests a second", "median", "99 %"]
    heads += ["99 %, worst round", "resident"]
    return [*table(heads, rows), "", *wrapped(said).splitlines()]


def bad_table(document: dict[str, Any]) -> list[str]:
    """Kinds of requests with their answers, and what the server's memory did."""
    kinds = document["kinds"]
    rows = [[kind, str(each["sent"]), each["answer"]] for kind, each in kinds.items()]
    resident = [count / 2**20 for count in document["resident_bytes"]]
    quarter = max(1, len(resident) // 4)
    wrong = document["wrong"]
    many = sum(each["sent"] for each in kinds.values())
    said = (
        f"{many} requests from {counted(document['effort']['clients'], 'client')}, after "
        f"{document['earlier']} such ones. Other answers than these: "
        f"{', '.join(f'{what} ({count})' for what, count in wrong.items()) or 'none'}. Resident "
        f"memory: {resident[0]:.0f} MiB before, {max(resident):.0f} at most, "
        f"{resident[-1]:.0f} after; in the median {median(resident[:quarter]):.0f} in the first "
        f"quarter and {median(resident[-quarter:]):.0f} in the last. Good requests were answered "
        f"after that ({document['good_per_second_after']:.0f} a second of 2 clients), and SIGTERM "
        f"ended the server with exit code {document['exit_code']}."
    )
    return [*table(["request", "sent", "answer"], rows), "", *wrapped(said).splitlines()]
