"""The ledger: the one truth about who owns which node.

Two implementations of `bridge.ports.Ledger` that pass the same contract suite: `postgres.PostgresLedger` for
production and `memory.MemoryLedger` for tests and simulation. What a commit means is written once, in `changes` and
`inventory`, as pure functions that both call; they differ in where rows come from and go to.

May import `bridge.model` and `bridge.ports`; only `bridge.wiring` and tests import this package.
"""
