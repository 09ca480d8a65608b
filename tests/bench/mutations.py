"""Drop one rule of the planner at a time and see a test fail: ``python -m tests.bench.mutations [NAME…]``.

Each mutation is one edit of a copy of the package. A mutant that no test kills names a rule that nobody would miss.
Examples run first; the laws, which take longer, only where those say nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "tests/unit/test_planner*.py",
    "tests/unit/test_entitlement.py",
    "tests/unit/test_victims*.py",
    "tests/unit/test_placement*.py",
    "tests/unit/test_scheduler_cases.py",
)
LAWS = ("tests/property/test_planner_laws.py", "tests/property/test_victims_laws.py")


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` stands once in `file` of ``bridge/planning`` and becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    Mutation(
        "a floor may be lent away",
        "planner.py",
        "return max(0, self.stock.usable[source] - keep)",
        "return self.stock.usable[source]",
    ),
    Mutation(
        "a lend limit of none lends all", "entitlement.py", "floors[side] - pool.share(side).lend_limit_nodes", "0"
    ),
    Mutation(
        "a side lends what it wants of its floor",
        "entitlement.py",
        "min(floors[side], wanted[side])",
        "min(0, wanted[side])",
    ),
    Mutation(
        "victims take a side below its fair share",
        "planner.py",
        "return max(share.kept_nodes, min(share.wanted_nodes, ceil(share.fair_nodes)))",
        "return share.kept_nodes",
    ),
    Mutation("victims for more than a fair share", "planner.py", "limit = min(limit, entitled)", "limit = limit"),
    Mutation("no guarantee reclaims", "planner.py", "guaranteed = self._under_guarantee(demand)", "guaranteed = False"),
    Mutation(
        "a guarantee protects nobody",
        "planner.py",
        "max(0.0, standing.spare_nodes - self.team_loses.get(name, 0.0))",
        'float("inf")',
    ),
    Mutation(
        "victims without number",
        "planner.py",
        "self.pool.preemption.max_victims_per_window - recent - len(self.ended)",
        "10**6",
    ),
    Mutation(
        "victims of the window are forgotten",
        "planner.py",
        "self.pool.preemption.max_victims_per_window - recent",
        "self.pool.preemption.max_victims_per_window",
    ),
    Mutation("ended twice in a minute", "planner.py", "now - past.at < respite", "False"),
    Mutation("protected works are ended", "victims.py", "if work.protected or held_nodes", "if held_nodes"),
    Mutation("rank does not protect", "victims.py", "if rank_of[name] <= rank}", "if True}"),
    Mutation(
        "half a gang moves",
        "planner.py",
        "            if demand.whole:\n                return False\n        self._begin",
        "        self._begin",
    ),
    Mutation(
        "a gang passes one that waits", "planner.py", "queues[side] = self._behind(claim.demand, queues[side])", "pass"
    ),
    Mutation("a gang keeps idle nodes for ever", "planner.py", "> self.pool.gang_deadline_s", "> 1e12"),
    Mutation("a backoff is forgotten", "planner.py", "if until is not None and now < until:", "if False:"),
    Mutation(
        "what is larger than the pool is counted",
        "planner.py",
        "if demand.whole and demand.nodes > nodes:",
        "if False:",
    ),
    Mutation("impossible demand is counted", "planner.py", "if demand.impossible:", "if False:"),
    Mutation(
        "no quota for teams",
        "planner.py",
        "if standing.holds_nodes + gets + more_nodes <= standing.ceiling_nodes:",
        "if True:",
    ),
    Mutation("use does not count", "planner.py", "ratio = standing.ratio if standing else 0.0", "ratio = 0.0"),
    Mutation(
        "rank does not count",
        "planner.py",
        "not self._under_guarantee(demand), -demand.rank,",
        "not self._under_guarantee(demand), 0,",
    ),
    Mutation("no borrow limit", "entitlement.py", "if share.borrow_limit_nodes is not None:", "if False:"),
    Mutation("no maximum", "entitlement.py", "if share.max_nodes is not None:", "if False:"),
    Mutation("no minimum hold", "refusals.py", "if held_s < pool.min_hold_s:", "if False:"),
    Mutation("no idle age", "refusals.py", "if idle_s < pool.idle_age_s else", "if False else"),
    Mutation("no demand age", "planner.py", "if waited_s < self.pool.demand_age_s:", "if False:"),
    Mutation(
        "a failed node is taken again at once", "refusals.py", "if backoff is not None and now < backoff:", "if False:"
    ),
    Mutation("a node is sent where a person closed it", "refusals.py", "    if theirs:", "    if False:"),
    Mutation("an admin's drain is no obstacle", "snapshot.py", "if facts.foreign and side is source:", "if False:"),
    Mutation("an unknown mark is no obstacle", "snapshot.py", "if facts.stray_mark is not None:", "if False:"),
    Mutation("a dead node is taken", "snapshot.py", "if not facts.answers:", "if False:"),
    Mutation("any node will do", "stock.py", "set().union(*wished) if wishes else enough", "enough"),
    Mutation(
        "nodes too small will do",
        "stock.py",
        "for place in self.places if place.record.node.gpus >= gpus}",
        "for place in self.places}",
    ),
    Mutation("demand is not gathered", "planner.py", "if since_s < self.pool.batch_window_s:", "if False:"),
    Mutation("no maintenance budget", "planner.py", "            if out > most:", "            if False:"),
    Mutation(
        "no limit of handoffs",
        "planner.py",
        "return max(0, self.pool.max_in_flight - self.stock.in_flight)",
        "return 10**6",
    ),
    Mutation(
        "headroom is lent", "planner.py", "beyond = max(0, self.stock.unclaimed(source) - kept)", "beyond = 10**6"
    ),
    Mutation("no headroom is kept ready", "planner.py", "            self._keep_headroom()", "            pass"),
    Mutation("floors are not restored", "planner.py", "            self._restore_floor(side)", "            pass"),
    Mutation(
        "what is of no use stays", "planner.py", "        self._send_home_the_unusable()\n        held", "        held"
    ),
    Mutation("no spare nodes", "stock.py", "for place in self.rest[Owner.BRIDGE]", "for place in ()"),
    Mutation("no early drains", "stock.py", "self.ends_in_s(place) <= within_s", "False"),
    Mutation(
        "what a queue will use is lent",
        "stock.py",
        "place.name not in self.taken and place.name not in self.claimed",
        "place.name not in self.taken",
    ),
    Mutation(
        "what comes for one serves another",
        "stock.py",
        "p.handoff is None or p.handoff.demand not in self.awaited",
        "True",
    ),
    Mutation(
        "the dearest first",
        "victims.py",
        "return (work.rank, work.loss_gpu_s, work.priority, work.runs_for_s, work.key)",
        "return (work.rank, -work.loss_gpu_s, work.priority, work.runs_for_s, work.key)",
    ),
    Mutation(
        "teams may lose any number", "victims.py", "return all(nodes <= limits", "return True or all(nodes <= limits"
    ),
    Mutation(
        "gangs are spread",
        "placement.py",
        "if together else sorted(blocks, key=_least_broken)",
        "if False else sorted(blocks, key=_least_broken)",
    ),
    Mutation("whole blocks are broken", "placement.py", "return (block.whole, len", "return (False, len"),
)


def main(wanted: Sequence[str]) -> None:
    survived = []
    for mutation in MUTATIONS:
        if wanted and mutation.name not in wanted:
            continue
        killer = _try(mutation)
        sys.stdout.write(f"{killer or 'SURVIVED':32}  {mutation.name}\n")
        sys.stdout.flush()
        survived += [] if killer else [mutation.name]
    sys.exit(f"survived: {', '.join(survived)}" if survived else 0)


def _try(mutation: Mutation) -> str:
    """The test that fails, or empty when none does."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for part in ("bridge", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        source = copy / "bridge" / "planning" / mutation.file
        text = source.read_text()
        if text.count(mutation.old) != 1:
            return f"stale: found {text.count(mutation.old)} times"
        source.write_text(text.replace(mutation.old, mutation.new))
        return _failing(copy, EXAMPLES) or _failing(copy, LAWS)


def _failing(copy: Path, patterns: Sequence[str]) -> str:
    files = [str(path) for pattern in patterns for path in sorted(copy.glob(pattern))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    failed = [line.split("::")[-1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return (failed or [f"pytest ended with {done.returncode}"])[0][:60]


if __name__ == "__main__":
    main(sys.argv[1:])
