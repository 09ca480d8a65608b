"""observe -> commit what follows -> act. Sees the model, the core and the ports, nothing else.

`loop` is the heartbeat and the leadership, `look` turns ports into facts, `decide` turns facts into changes of the
ledger (pure but for fresh ids), `carry_out` turns the difference between ledger and world into outside calls.
"""
