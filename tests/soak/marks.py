"""The bridge's marks in both worlds against the ledger: those that nobody owns any more, and those that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.model import hostlists

Json = dict[str, Any]

RESERVATION = "bridge-shared"
TAINT = "bridge.slurm-kube.io/lease"


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands outside. Keys are each scheduler's own names of nodes, values marks or leases as written."""

    drains: Mapping[str, str]
    reserved: frozenset[str]
    taints: Mapping[str, str]
    fences: Mapping[str, str]
    loans: Mapping[str, str]


def read_marks(
    slurm_nodes: Iterable[Json],
    reservations: Iterable[Json],
    kube_nodes: Iterable[Json],
    fences: Iterable[Json],
    loans: Iterable[Json],
) -> Marks:
    """From what ``scontrol --json`` and ``kubectl -o json`` show. Drains of people are left out: they are not ours."""
    drains = {
        node["name"]: node["reason"].split()[0]
        for node in slurm_nodes
        if "DRAIN" in node["state"] and node["reason"].startswith("bridge:")
    }
    held = [found["node_list"] for found in reservations if found["name"] == RESERVATION and found["node_list"]]
    taints = {
        node["metadata"]["name"]: str(taint.get("value", ""))
        for node in kube_nodes
        for taint in node["spec"].get("taints") or ()
        if taint["key"] == TAINT
    }
    return Marks(
        drains=drains,
        reserved=frozenset(hostlists.expand(held)),
        taints=taints,
        fences={name: mark for fence in fences for name, mark in fence["spec"]["closed"].items()},
        loans={loan["metadata"]["name"]: loan["spec"]["lease"] for loan in loans},
    )


def left_behind(marks: Marks, nodes: Sequence[Json]) -> list[str]:
    """Marks that the ledger's `nodes` (of ``GET /v1/nodes``) do not own, and closures of theirs without a mark."""
    slurm = {node["slurm_name"]: _closure(node, "slurm") for node in nodes}
    kube = {node["kube_name"]: _closure(node, "kubernetes") for node in nodes}
    lease_ids = {node["kube_name"]: node["lease"]["id"] for node in nodes if node["lease"]}
    return [
        *_differences("drain", marks.drains, slurm),
        *_differences("place in the reservation", dict.fromkeys(marks.reserved, ""), slurm),
        *_differences("taint", dict.fromkeys(marks.taints, ""), kube),
        *_differences("fence entry", marks.fences, kube),
        *(
            f"the NodeLoan of {name} is of lease {lease}, the ledger has {lease_ids.get(name)}"
            for name, lease in sorted(marks.loans.items())
            if lease != lease_ids.get(name)
        ),
    ]


def _differences(what: str, standing: Mapping[str, str], owned: Mapping[str, str | None]) -> Iterator[str]:
    """`standing` has the mark of each node, or an empty text where that kind carries none."""
    for name in sorted(standing.keys() | owned.keys()):
        stands, wanted = standing.get(name), owned.get(name)
        if stands is not None and wanted is None:
            yield f"{what} of {name} ({stands or 'ours'}): the ledger has no closure there"
        elif stands is None and wanted is not None:
            yield f"{what} of {name} is missing: the ledger has {wanted}"
        elif stands and stands != wanted:
            yield f"{what} of {name} is {stands}, the ledger has {wanted}"


def _closure(node: Json, side: str) -> str | None:
    return next((closure["mark"] for closure in node["closures"] if closure["side"] == side), None)


def not_at_rest(nodes: Iterable[Json]) -> list[str]:
    """Nodes in motion, and nodes that nobody owns without a reason that a person can read."""
    found = []
    for node in nodes:
        if node["handoff"]:
            blockers = "; ".join(node["handoff"]["blockers"]) or "nothing said"
            found.append(f"{node['name']} is in step {node['handoff']['step']}: {blockers}")
        elif node["owner"] not in ("slurm", "kubernetes") and not node["unusable"]:
            found.append(f"{node['name']} is owned by {node['owner']} and does not say why")
    return found


def named(nodes: Iterable[Json]) -> list[str]:
    """Nodes at rest that cannot be used, with the reason that they say."""
    return [f"{node['name']} ({node['owner']}): {node['unusable']}" for node in nodes if node["unusable"]]
