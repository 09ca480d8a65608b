"""The routes, one module a subject. Each reads the ledger through `bridge.ports.Ledger` and answers with a view."""
