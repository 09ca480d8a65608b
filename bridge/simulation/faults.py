"""What can go wrong with a call, chosen one by one or by a seed.

A call is named ``<port>.<method>`` (``slurm.drain``); where a name is asked for, ``drain`` means that method of any
port and ``slurm.`` means every method of that port. Reads fail with `Unreadable`, writes with `CallFailed`, the errors
that the ports promise; `Crash` is the broker itself dying and is no error that its code could catch by mistake.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar, cast

from bridge.model.errors import BridgeError, CallFailed, Unreadable
from bridge.simulation.clock import Effect, SimulatedClock

T = TypeVar("T")
Port = TypeVar("Port")


class Crash(BaseException):
    """The broker's process dies at this line. Not an `Exception`: nobody may handle it but the world."""


class When(StrEnum):
    """Where, as seen from its effect, a call breaks. The caller cannot tell the first four apart."""

    BEFORE = "before"
    """It never took effect."""
    PARTWAY = "partway"
    """It took effect on the first half of its nodes: a call for many nodes is not atomic."""
    AFTER = "after"
    """It took effect, the answer was lost."""
    LATE = "late"
    """It timed out and takes effect later, when the caller may have stopped leading."""
    OLD = "old"
    """A read answers what it answered before, if that is younger than `OLD_FOR_S`; a write cannot."""
    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"


OLD_FOR_S = 5.0
"""How old a view may be that a port still shows (`kube_max_age_s`)."""

SURVIVABLE = (When.BEFORE, When.PARTWAY, When.AFTER, When.LATE)


@dataclass(frozen=True, slots=True)
class Fault:
    when: When
    delay_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Injected:
    """A line of the journal: which call, the how-manieth of all calls, was broken and how."""

    at_s: float
    number: int
    call: str
    when: When


class Faults:
    """Decides for every outside call whether and how it breaks, and carries it out accordingly."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._planned: list[tuple[str, deque[Fault]]] = []
        self._numbered: dict[int, Fault] = {}
        self._away: set[str] = set()
        self._rng: random.Random | None = None
        self._rate = 0.0
        self._kinds: tuple[When, ...] = ()
        self._answered: dict[str, tuple[float, Any]] = {}
        self.calls: list[str] = []
        self.journal: list[Injected] = []

    # --- the knobs ---

    def fail_next(self, call: str, *, when: When | str = When.AFTER, times: int = 1, delay_s: float = 3.0) -> None:
        """Break the next `times` calls of that name. `delay_s` is how much later a `LATE` one takes effect."""
        self._planned.append((call, deque([Fault(When(when), delay_s)] * times)))

    def fail_number(self, number: int, *, when: When | str) -> None:
        """Break the `number`-th of all calls, counted from 0: for trying every prefix of a story in turn."""
        self._numbered[number] = Fault(When(when))

    def away(self, call: str) -> None:
        """Every such call fails without effect until `back`: the service is gone."""
        self._away.add(call)

    def back(self, call: str) -> None:
        self._away.discard(call)

    def chaos(self, rng: random.Random, rate: float, kinds: Collection[When] = SURVIVABLE) -> None:
        """From now on break each call with probability `rate`, in a way drawn from `kinds`."""
        self._rng, self._rate, self._kinds = rng, rate, tuple(kinds)

    def calm(self) -> None:
        """Nothing breaks any more, whatever was planned; what is on its way late still arrives."""
        self._planned.clear()
        self._numbered.clear()
        self._away.clear()
        self._rate = 0.0

    # --- what the simulated ports call ---

    def read(self, call: str, look: Callable[[], T]) -> T:
        """The answer to a read, or `Unreadable`: a broken read tells nothing, however it broke."""
        fault = self._draw(call)
        if fault is None:
            return self._answer(call, look)
        if fault.when is When.OLD:
            answered_s, answer = self._answered.get(call, (-math.inf, None))
            fresh_enough = self._clock.monotonic_s() - answered_s <= OLD_FOR_S
            return cast(T, answer) if fresh_enough else self._answer(call, look)
        self._die_if(fault, When.CRASH_BEFORE, call)
        self._die_if(fault, When.CRASH_AFTER, call)
        raise Unreadable(call, "no complete and fresh answer (injected)")

    def write(self, call: str, effects: Sequence[Effect]) -> None:
        """Carry out a write, one effect a node, wholly or as far as its fault allows; then `CallFailed`."""
        fault = self._draw(call)
        if fault is None:
            _carry_out(effects)
            return
        self._die_if(fault, When.CRASH_BEFORE, call)
        if fault.when in (When.AFTER, When.CRASH_AFTER):
            _carry_out(effects)
        elif fault.when is When.PARTWAY:
            _carry_out(effects[: len(effects) // 2])
        elif fault.when is When.LATE:
            self._clock.after(fault.delay_s, lambda: _arrive_late(effects))
        self._die_if(fault, When.CRASH_AFTER, call)
        raise CallFailed(f"{call}: no answer in time (injected)")

    # --- inside ---

    def _answer(self, call: str, look: Callable[[], T]) -> T:
        answer = look()
        self._answered[call] = (self._clock.monotonic_s(), answer)
        return answer

    def _draw(self, call: str) -> Fault | None:
        number = len(self.calls)
        self.calls.append(call)
        fault = self._choose(call, number)
        if fault is not None:
            self.journal.append(Injected(self._clock.monotonic_s(), number, call, fault.when))
        return fault

    def _choose(self, call: str, number: int) -> Fault | None:
        if number in self._numbered:
            return self._numbered.pop(number)
        for name, faults in self._planned:
            if faults and _names(name, call):
                return faults.popleft()
        if any(_names(name, call) for name in self._away):
            return Fault(When.BEFORE)
        if self._rng is not None and self._rng.random() < self._rate:
            return Fault(self._rng.choice(self._kinds), delay_s=self._rng.uniform(0.1, 5.0))
        return None

    @staticmethod
    def _die_if(fault: Fault, when: When, call: str) -> None:
        if fault.when is when:
            raise Crash(f"{when} {call}")


def _names(name: str, call: str) -> bool:
    return call == name or call.endswith(f".{name}") or (name.endswith(".") and call.startswith(name))


def _carry_out(effects: Sequence[Effect]) -> None:
    for effect in effects:
        effect()


def _arrive_late(effects: Sequence[Effect]) -> None:
    """Nobody waits for the answer any more, so a refusal (an older mark, say) is told to nobody."""
    for effect in effects:
        try:
            effect()
        except BridgeError:
            return


def faulty(port: Port, name: str, faults: Faults, *, reads: Collection[str]) -> Port:
    """`port` with faults around each method: for the ledger, whose commits also fail before and after their effect.

    `reads` are the methods without an effect; attributes that are no methods pass through.
    """
    return cast(Port, _FaultyPort(port, name, faults, frozenset(reads)))


class _FaultyPort:
    def __init__(self, port: object, name: str, faults: Faults, reads: frozenset[str]) -> None:
        self._port = port
        self._name = name
        self._faults = faults
        self._reads = reads

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._port, attribute)
        if not callable(found):
            return found
        call = f"{self._name}.{attribute}"

        @wraps(found)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if attribute in self._reads:
                return self._faults.read(call, lambda: found(*args, **kwargs))
            answers: list[Any] = []
            self._faults.write(call, [lambda: answers.append(found(*args, **kwargs))])
            return answers[0]

        return guarded
