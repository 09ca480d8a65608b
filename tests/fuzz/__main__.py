"""``python -m tests.fuzz SEEDS [FIRST_SEED]``: plays that many stories on all cores and says which ones broke.

A broken story is shrunk and printed, shortest first of what happened; the last line is ``N seeds, M failures``. The
exit code is 1 when any broke.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.fuzz.stage import Failure, failure_of, shortest
from tests.fuzz.story import Story, tell

SHRUNK = 3
"""How many broken stories are shrunk; of the others the seed is enough, they are mostly the same."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seeds", type=int)
    parser.add_argument("first_seed", type=int, nargs="?", default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    began_s, broken = time.monotonic(), 0
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    with multiprocessing.Pool(asked.jobs) as pool:
        for number, (seed, failure) in enumerate(pool.imap_unordered(_play, seeds, chunksize=4), 1):
            if failure is not None:
                broken += 1
                _report(tell(seed), failure, shrink=broken <= SHRUNK)
            if number % 500 == 0:
                print(f"... {number} of {asked.seeds} in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    print(f"{asked.seeds} seeds, {broken} failures")
    return 1 if broken else 0


def _play(seed: int) -> tuple[int, Failure | None]:
    return seed, failure_of(tell(seed))


def _report(story: Story, failure: Failure, *, shrink: bool) -> None:
    print(f"seed {story.seed} breaks {failure}", flush=True)
    if shrink:
        short = shortest(story, failure)
        print(f"{len(short.events)} of its {len(story.events)} events are enough:\n{short}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
