"""What people see while the days go by: moves and their reasons, arrivals, and now and then the whole fleet."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.console import Console
from rich.markup import escape

from bridge.model.handoff import ADOPTER, Handoff, Step
from bridge.model.ownership import Owner, Side
from bridge.planning.planner import PLANNER
from bridge.ports import Ledger
from bridge.simulation.world import World

LEGEND = "Minutes and seconds are simulated. S: Slurm owns the node, K: Kubernetes does, -: it is on its way."
_LETTER = {Owner.SLURM: "S", Owner.KUBERNETES: "K", Owner.BRIDGE: "-"}
_COLOUR = {Step.DONE: "green", Step.RETURNED: "yellow", Step.FAILED: "red", Step.QUARANTINED: "red"}


class Teller:
    """Prints to `console`, a sentence a line: a pipe or a narrow terminal must not break them."""

    def __init__(self, console: Console, ledger: Ledger, world: World) -> None:
        self._console = console
        self._ledger = ledger
        self._world = world
        self._began = world.clock.now()
        self._seen_event = 0

    def say(self, text: str = "") -> None:
        self._console.print(text, soft_wrap=True)

    def tell(self) -> None:
        """What happened since the last call. Nodes that begin or arrive together share a line."""
        together: dict[tuple[str, str], list[Handoff]] = {}
        moments: dict[tuple[str, str], datetime] = {}
        for event in self._ledger.events(after=self._seen_event, limit=500):
            self._seen_event = event.id
            step = str(event.data.get("step", ""))
            handoff = self._ledger.handoff(event.handoff) if event.handoff and step in _TOLD else None
            if handoff is not None:
                first_day = handoff.requested_by == ADOPTER
                key = (step, ADOPTER if first_day else handoff.lease)
                together.setdefault(key, []).append(handoff)
                moments[key] = event.at
        for key, handoffs in together.items():
            self._tell_step(Step(key[0]), handoffs, moments[key])

    def fleet(self) -> None:
        """The owners of the nodes, and what runs and waits on both sides."""
        state = self._ledger.read()
        letters = " ".join(_LETTER[lease.owner] for _, lease in sorted(state.leases.items()))
        jobs = Counter(job.state for job in self._world.slurm.observe().jobs)
        pods = self._world.kube.cluster.of("default/chat")
        ready = sum(pod.ready for pod in pods)
        self.say(
            f"{self._at(self._world.clock.now())}  [dim]nodes {letters} | jobs {jobs['RUNNING']} running, "
            f"{jobs['PENDING']} waiting | chat pods {ready} ready, {len(pods) - ready} waiting[/]"
        )

    def _tell_step(self, step: Step, handoffs: list[Handoff], at: datetime) -> None:
        first, names = handoffs[0], ", ".join(sorted(handoff.node for handoff in handoffs))
        if first.requested_by == ADOPTER:
            if step is Step.DONE:
                self.say(f"{self._at(at)}  {names}: {_name(first.destination)}'s, and closed to {_name(first.source)}")
        elif step is Step.CLOSE:
            by = "" if first.requested_by == PLANNER else f" (ordered by {first.requested_by})"
            reason = escape(f"{first.reason}{by}")
            self.say(f"{self._at(at)}  [bold]move[/]  {names}: {first.source} -> {first.destination}: {reason}")
        else:
            outcome = f"now {_name(first.destination)}'s" if step is Step.DONE else escape(str(first.outcome))
            took_s = (at - first.began_at).total_seconds()
            self.say(f"{self._at(at)}  [{_COLOUR[step]}]{step}[/]  {names}: {outcome}, after {took_s:.1f} s")

    def _at(self, moment: datetime) -> str:
        minutes, seconds = divmod(int((moment - self._began).total_seconds()), 60)
        return f"[dim]{minutes:02d}:{seconds:02d}[/]"


_TOLD = frozenset({Step.CLOSE, *_COLOUR})


def _name(side: Side) -> str:
    return str(side).capitalize()
