"""The few errors that cross a layer. Each says by its type whether trying again can help."""

from __future__ import annotations


class BridgeError(Exception):
    """Base of all errors the bridge raises on purpose."""


class Unreadable(BridgeError):
    """A source could not be read wholly and freshly: UNKNOWN. Nothing may be concluded; a later read may succeed."""

    def __init__(self, source: str, detail: str) -> None:
        super().__init__(f"{source} is unreadable: {detail}")
        self.source = source
        self.detail = detail


class CallFailed(BridgeError):
    """An outside write failed or its outcome is unknown. The step is repeated; every step is idempotent."""


class Fenced(BridgeError):
    """Our epoch or generation is older than what the world has seen: we are not the leader any more. Stop at once."""


class Conflict(BridgeError):
    """The row or version that a write names has changed in the meantime. Read again, then decide again."""


class Invalid(BridgeError):
    """Input that can never be right: says what, where, and what to do."""


class InvariantViolation(BridgeError):
    """A named invariant does not hold. Nothing may go on as if it did."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
