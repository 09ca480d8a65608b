"""Where a waiting pod's constraints on its place among other pods let it run, were a shared node open and free. Pure.

A pod that must be spread over zones is helped by a node in the zone with the fewest of its kind and by no other. So
pods that are alike are placed in thought, one after the other, each where the scheduler would have to put it: each is
then told the nodes that help it. The node itself counts as free of pods, so what is asked *per node* never forbids one;
it says how many of these pods a node may take.

Less than the scheduler knows: waiting pods of different kinds are not set against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.kube.fit import Shape, selected, tolerates_all
from bridge.kube.nearness import HOSTNAME, Near, Spread, Term
from bridge.kube.pods import Pod

MOST_PLACED = 200
"""Of pods that are alike so many are placed one by one; those behind them are told what the first ones are."""

_Cell = tuple[str | None, ...]
"""The values of the labels that matter, of nodes that are alike in them."""


@dataclass(frozen=True, slots=True)
class Placed:
    """`helps` are names of shared nodes, None: no constraint forbids any. `per_node`: most of them on one, 0: any."""

    helps: frozenset[str] | None = None
    per_node: int = 0
    obstacle: str = ""


class Neighbours:
    """The pods that have a node, and the nodes of the whole cluster, shared or not, by name."""

    def __init__(self, pods: Iterable[Pod], shared: Iterable[Shape], elsewhere: Iterable[Shape] = ()) -> None:
        self._shared = {shape.name: shape for shape in shared}
        self._nodes = {shape.name: shape for shape in elsewhere} | self._shared
        self._by_namespace: dict[str, list[Pod]] = {}
        self._guards: dict[tuple[bytes, int], tuple[Term, dict[str, str]]] = {}
        for pod in pods:
            if pod.node:
                self._by_namespace.setdefault(pod.namespace, []).append(pod)
                if pod.near is not None:
                    self._guard(pod, pod.near)

    @property
    def guarded(self) -> bool:
        """Whether some pod that runs keeps others away from more than its own node."""
        return bool(self._guards)

    def _guard(self, pod: Pod, near: Near) -> None:
        """It keeps others away from more than its own node."""
        for number, term in enumerate(near.apart):
            _, nodes = self._guards.setdefault((near.alike, number), (term, {}))
            nodes[pod.node] = min(nodes.get(pod.node, pod.key), pod.key)

    def kind(self, pod: Pod) -> Hashable:
        """The same for waiting pods that can be placed in one go; None: nothing forbids them anything."""
        near = pod.near or Near()
        guards = tuple(which for which, (term, _) in self._guards.items() if term.covers(pod.namespace, pod.labels))
        if near == Near() and not guards:
            return None
        terms = (*(_term_of(spread, pod) for spread in near.spread), *near.beside, *near.apart)
        itself = tuple(term.covers(pod.namespace, pod.labels) for term in terms)
        return (pod.namespace, pod.requires, near.alike, itself, guards)

    def place(self, alike: Sequence[Pod], able: Collection[str] | None) -> list[Placed]:
        """For each of `alike`, waiting pods that ask the same, in order. `able` fit it otherwise, None: all do."""
        near = alike[0].near or Near()
        unread = next((term.unread for term in (*near.beside, *near.apart) if term.unread), "")
        if unread:
            why = f"UNKNOWN: its pod affinity asks for {unread}, which the bridge does not read"
            return [Placed(frozenset(), 0, why)] * len(alike)
        shapes = [self._shared[name] for name in (self._shared if able is None else able)]
        return _Class(self, alike[0], near, shapes).place(len(alike))

    def counts(self, term: Term, *, terminating: bool = True) -> Counter[str]:
        """How many pods that have a node `term` covers, by the node's name."""
        spaces = self._by_namespace if term.namespaces is None else term.namespaces
        found: Counter[str] = Counter()
        for space in spaces:
            for pod in self._by_namespace.get(space, ()):
                if (terminating or pod.terminating_since is None) and term.covers(pod.namespace, pod.labels):
                    found[pod.node] += 1
        return found

    def by_domain(self, counts: Mapping[str, int], key: str) -> Counter[str]:
        """The same by the value of the nodes' label `key`."""
        found: Counter[str] = Counter()
        for name, count in counts.items():
            value = self._value(name, key)
            if value is not None:
                found[value] += count
        return found

    def guards(self, pod: Pod) -> Iterator[tuple[str, frozenset[str], str]]:
        """Node label, its values that pods which run keep `pod` away from, and one such pod."""
        for term, nodes in self._guards.values():
            if term.covers(pod.namespace, pod.labels):
                values = frozenset(value for node in nodes if (value := self._value(node, term.key)) is not None)
                yield term.key, values, min(nodes.values())

    def eligible(self, pod: Pod, spread: Spread, keys: Iterable[str]) -> list[Shape]:
        """The nodes over which `pod` is to be spread."""
        return [
            shape
            for shape in self._nodes.values()
            if all(key in shape.labels for key in keys)
            and (not spread.honor_affinity or selected(pod, shape))
            and (not spread.honor_taints or tolerates_all(pod, shape, ours=False))
        ]

    def _value(self, node: str, key: str) -> str | None:
        shape = self._nodes.get(node)
        return None if shape is None else shape.labels.get(key)


def _term_of(spread: Spread, pod: Pod) -> Term:
    """The pods that a spread counts: those of its own namespace."""
    return Term(spread.key, spread.pods, frozenset({pod.namespace}))


@dataclass(slots=True)
class _Domains:
    """The pods that a spread counts, by value of its label; `own` is 1 where the pod itself is one of them."""

    spread: Spread
    count: Counter[str]
    own: int

    def fewest(self) -> int:
        if len(self.count) < max(1, self.spread.min_domains):
            return 0
        return min(self.count.values())

    def room(self, value: str, fewest: int) -> int:
        """How many more pods the value may take while the others stay as they are."""
        return self.spread.most_skew + min(fewest, self.count[value]) - self.count[value]


class _Class:
    """Waiting pods that are alike, and the cells of nodes that fit them otherwise."""

    def __init__(self, among: Neighbours, pod: Pod, near: Near, shapes: Sequence[Shape]) -> None:
        self._among, self._pod, self._near = among, pod, near
        self._everywhere = len(shapes)
        guards = list(among.guards(pod))
        wide = {key for key in near.labels() if key != HOSTNAME} | {key for key, _, _ in guards}
        self._keys = tuple(sorted(wide))
        self._cells: dict[_Cell, list[str]] = {}
        for shape in shapes:
            self._cells.setdefault(tuple(shape.labels.get(key) for key in self._keys), []).append(shape.name)
        self._guards = guards
        self._per_node = 0
        self._spreads: list[_Domains] = []
        for spread in near.spread:
            self._add_spread(spread)
        from_each_other = [term.key for term in near.apart if term.covers(pod.namespace, pod.labels)]
        self._one_each = [key for key in from_each_other if key != HOSTNAME]
        if HOSTNAME in from_each_other:
            self._limit(1)

    def _add_spread(self, spread: Spread) -> None:
        pod = self._pod
        term = _term_of(spread, pod)
        keys = [one.key for one in self._near.spread]
        counts = self._among.counts(term, terminating=False)
        eligible = {shape.name: counts[shape.name] for shape in self._among.eligible(pod, spread, keys)}
        count = self._among.by_domain(eligible, spread.key)
        domains = _Domains(spread, count, int(term.covers(pod.namespace, pod.labels)))
        if spread.key != HOSTNAME:
            self._spreads.append(domains)
        elif domains.own:
            self._limit(spread.most_skew + domains.fewest())

    def _limit(self, per_node: int) -> None:
        self._per_node = min(self._per_node or per_node, per_node)

    # --- placing ---

    def place(self, count: int) -> list[Placed]:
        obstacle = self._forbidden()
        if obstacle:
            return [Placed(frozenset(), 0, obstacle)] * count
        together = self._room_for(count)
        if together:
            return [self._placed(together)] * count
        found: list[Placed] = []
        obstacle = ""
        while len(found) < min(count, MOST_PLACED) and not obstacle:
            cell, obstacle = self._next()
            if cell is not None:
                found.append(self._placed([cell]))
                self._add(cell)
        if obstacle:
            return found + [Placed(frozenset(), 0, obstacle)] * (count - len(found))
        return [found[at % len(found)] for at in range(count)]

    def _placed(self, cells: Iterable[_Cell]) -> Placed:
        names = frozenset(name for cell in cells for name in self._cells[cell])
        return Placed(None if len(names) == self._everywhere else names, self._per_node)

    def _forbidden(self) -> str:
        """Take away the cells that are forbidden whatever is placed; why none is left, or empty."""
        if not self._cells:
            return "no shared node has all at once that it asks for"
        for why, allowed in self._checks():
            self._cells = {cell: names for cell, names in self._cells.items() if allowed(cell)}
            if not self._cells:
                return why
        return ""

    def _checks(self) -> Iterator[tuple[str, Callable[[_Cell], bool]]]:
        for spread in self._near.spread:
            if spread.key != HOSTNAME:
                why = f"no shared node that it fits has label {spread.key}, over which its pods are to be spread"
                yield why, lambda cell, key=spread.key: self._value(cell, key) is not None  # type: ignore[misc]
        for term in self._near.apart:
            if term.key != HOSTNAME:
                taken = self._among.by_domain(self._among.counts(term), term.key)
                why = f"keeps away from pods {term.pods} by {term.key}, and one is in each of the shared nodes that fit"
                yield why, lambda cell, key=term.key, taken=taken: not taken[self._value(cell, key) or ""]  # type: ignore[misc]
        for key, values, example in self._guards:
            why = f"pod {example} keeps it away by {key} from all shared nodes that it fits"
            yield why, lambda cell, key=key, values=values: self._value(cell, key) not in values  # type: ignore[misc]
        for term in self._near.beside:
            yield from self._beside(term)

    def _beside(self, term: Term) -> Iterator[tuple[str, Callable[[_Cell], bool]]]:
        """The first of pods that are to be together may go anywhere."""
        counts = self._among.counts(term)
        if not counts and term.covers(self._pod.namespace, self._pod.labels):
            return
        why = f"must be beside pods {term.pods} by {term.key}, and none is near a shared node that it fits"
        if term.key == HOSTNAME:
            self._cells = {cell: [name for name in names if counts[name]] for cell, names in self._cells.items()}
            yield why, lambda cell: bool(self._cells[cell])
        else:
            near = self._among.by_domain(counts, term.key)
            yield why, lambda cell: near[self._value(cell, term.key) or ""] > 0

    def _value(self, cell: _Cell, key: str) -> str | None:
        return cell[self._keys.index(key)]

    def _room_for(self, count: int) -> list[_Cell]:
        """Cells that would take all `count` pods each, if every cell that may take one would; else none."""
        if self._one_each and count > 1:
            return []
        cells: list[_Cell] = []
        fewest = [domains.fewest() for domains in self._spreads]
        for cell in self._cells:
            rooms = [
                domains.room(str(self._value(cell, domains.spread.key)), least) if domains.own else 1_000_000_000
                for domains, least in zip(self._spreads, fewest, strict=True)
            ]
            if min(rooms, default=count) >= count:
                cells.append(cell)
            elif min(rooms) > 0:
                return []
        return cells

    def _next(self) -> tuple[_Cell | None, str]:
        """Where the next pod goes: of the cells that may take it the one with the fewest; why into none, or empty."""
        fewest = [domains.fewest() for domains in self._spreads]
        best: tuple[int, tuple[str, ...]] | None = None
        found: _Cell | None = None
        for cell in self._cells:
            values = [str(self._value(cell, domains.spread.key)) for domains in self._spreads]
            looked = zip(self._spreads, values, fewest, strict=True)
            if any(domains.own and domains.room(value, least) <= 0 for domains, value, least in looked):
                continue
            held = sum(domains.count[value] for domains, value in zip(self._spreads, values, strict=True))
            order = (held, tuple(map(str, cell)))
            if best is None or order < best:
                best, found = order, cell
        return found, "" if found is not None else self._too_uneven()

    def _too_uneven(self) -> str:
        for domains in self._spreads:
            key, least = domains.spread.key, domains.fewest()
            if domains.own and all(domains.room(str(self._value(cell, key)), least) <= 0 for cell in self._cells):
                few = sorted(value for value, count in domains.count.items() if count == least)
                where = (
                    f"{few[0]} has the fewest ({least})" if few else f"fewer than {domains.spread.min_domains} exist"
                )
                return f"its pods are to be spread over {key}: {where}, and no shared node that it fits is there"
        return f"no {' and '.join(self._keys)} is left for it among the shared nodes that it fits"

    def _add(self, cell: _Cell) -> None:
        """The pod that is placed counts for the next."""
        for domains in self._spreads:
            domains.count[str(self._value(cell, domains.spread.key))] += domains.own
        for key in self._one_each:
            value = self._value(cell, key)
            gone = [other for other in self._cells if self._value(other, key) == value and value is not None]
            for other in gone:
                del self._cells[other]
