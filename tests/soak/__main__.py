"""``python -m tests.soak --minutes 30 --seed 1``: the running testbed under load and mishaps, and a report at the end.

Exit code 0 when the last line says PASS. Ctrl-C mends what is broken, lets things come to rest and reports as well.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from types import FrameType

from tests.e2e.testbed import STATE, Testbed
from tests.soak.keep import keep, remember
from tests.soak.play import play
from tests.soak.report import text, verdict
from tests.soak.story import tell


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long things break; the quiet time comes on top")
    parser.add_argument("--seed", type=int, default=1, help="which story")
    arguments = parser.parse_args()
    if not (STATE / "admin.kubeconfig").exists():
        parser.error("the testbed is not up: run `make testbed-up BRIDGE=1`")
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    testbed = Testbed()
    recorded = play(tell(arguments.seed, arguments.minutes), testbed, stop)
    report = recorded.report()
    remember(report, recorded)
    if verdict(report):
        keep(recorded)
    sys.stdout.write(text(report))
    return 1 if verdict(report) else 0


if __name__ == "__main__":
    sys.exit(main())
