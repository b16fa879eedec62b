"""Whole processes for the tests: what is run in them, and how."""

from __future__ import annotations

import os
import subprocess
import sys

from support.waiting import HANG_S

# A little network: every program begins with it.
HEAD = """
import os, sys, threading, time, warnings
# Python 3.12 and later warn of every fork beside threads, as the workers are.
warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
import numpy as np
import leanconv as lc
from examples.networks import squeezenet_like
model = squeezenet_like(batch=1, image=32).SerializeToString()
x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype("f4")
# Workers take part however busy the machine is.
from leanconv.runtime.pool import Pacing
Pacing.together = lambda self, now: True
net = lc.load(model, threads=3)
expected = net(x)

def wait_until(holds, seconds=100):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
"""


def run_program(body: str) -> subprocess.CompletedProcess[str]:
    """Run a program after `HEAD` in a process of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    return subprocess.run(
        [sys.executable, "-c", HEAD + body],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
    )


def lines(body: str) -> list[str]:
    """The lines that a program prints; it must end with exit code 0 and say no more."""
    result = run_program(body)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()
