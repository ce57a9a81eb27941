"""Fuzz one reader, led by coverage: `python -m tests.fuzz READER [--seconds N]`; needs `pip install atheris`.

It says how many inputs it tried and how many of them were answered, and stops at the first fault with the
bytes that make it. An input that takes over 20 s or 2 GiB is a fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvroof"]):
    from tests.fuzz.readers import READERS, attempt

SLOW_S, EVERY_S, MEMORY_MIB, LONGEST = 20, 10, 2048, 2048


def main() -> None:
    """Run libFuzzer on the reader that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=int, default=600)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    tried = {True: 0, False: 0}

    began = said = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal said
        tried[attempt(asked.reader, data, folder)] += 1
        if (now := time.monotonic()) - said > EVERY_S:
            said = now
            total = sum(tried.values())
            print(
                f"{asked.reader}: {now - began:.0f} s, {total:,} tried, {tried[True]:,} answered", flush=True
            )

    limits = [f"-max_total_time={asked.seconds}", f"-timeout={SLOW_S}", f"-rss_limit_mb={MEMORY_MIB}"]
    atheris.Setup([sys.argv[0], *limits, f"-max_len={LONGEST}", "-len_control=0", "-verbosity=0"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
