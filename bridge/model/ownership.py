"""Who owns a node, under which lease, and which marks say so in the outside world."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Side(StrEnum):
    """One of the two schedulers a node can be open to."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"

    @property
    def other(self) -> Side:
        return Side.KUBERNETES if self is Side.SLURM else Side.SLURM

    @property
    def owner(self) -> Owner:
        return Owner.SLURM if self is Side.SLURM else Owner.KUBERNETES


class Owner(StrEnum):
    """Who may start work on a node. `BRIDGE` is nobody: in motion or quarantined, closed on both sides."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    BRIDGE = "bridge"

    @property
    def side(self) -> Side | None:
        if self is Owner.BRIDGE:
            return None
        return Side.SLURM if self is Owner.SLURM else Side.KUBERNETES


@dataclass(frozen=True, slots=True)
class Node:
    """A shared machine that runs slurmd and kubelet side by side.

    `slurm_name` and `kube_name` are the two schedulers' own names for it; `gpus` is the number both must offer.
    """

    name: str
    slurm_name: str
    kube_name: str
    pool: str
    gpus: int


_NUMBER = r"0|[1-9][0-9]{0,17}"
_MARK = re.compile(
    rf"bridge:(?P<lease>[a-z0-9]{{8,40}}):(?P<epoch>{_NUMBER}):(?P<generation>{_NUMBER})(?P<rest>| .*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The fencing token that the bridge writes into everything it closes outside.

    `epoch` is the leader's, `generation` comes from one growing sequence of the ledger, so that of two marks on a node
    the later one is always the larger: ``(epoch, generation)``. A whole lease carries one mark, so that one call can
    close all its nodes.
    """

    lease: str
    epoch: int
    generation: int

    def __str__(self) -> str:
        return f"bridge:{self.lease}:{self.epoch}:{self.generation}"

    @property
    def token(self) -> tuple[int, int]:
        return (self.epoch, self.generation)

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """The mark at the very start of a drain reason or annotation, or None when the text is not ours.

        Never a substring match: ``not a bridge: problem`` is a person's reason. Slurm may append its own words to ours
        (``… : Not responding``), so text after the mark is allowed, but only behind a space.
        """
        found = _MARK.fullmatch(text)
        if found is None:
            return None
        return cls(found["lease"], int(found["epoch"]), int(found["generation"]))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one owner to one node, as the ledger holds it. A node has at most one live lease.

    `id` is shared by all nodes that were moved together (a gang), never reused; `generation` grows with each change of
    `owner`. `handoff` names the live handoff when the node is in motion.
    """

    id: str
    node: str
    owner: Owner
    epoch: int
    generation: int
    owner_since: datetime
    handoff: str | None = None

    @property
    def mark(self) -> Mark:
        return Mark(self.id, self.epoch, self.generation)


@dataclass(frozen=True, slots=True)
class Closure:
    """The ledger's record that the bridge closed `side` of `node`, and what it read back after doing so.

    `mark` is what was written. `set_by` and `set_at` are the user and the time the scheduler reported when the mark was
    first read back (None until then). A closure is lifted only when all three are read back unchanged.
    """

    node: str
    side: Side
    mark: Mark
    set_by: str | None = None
    set_at: datetime | None = None
