"""What a handoff may do next, and why: the state table, the facts that drive it, the acts that carry it out. Pure.

Read in this order: `table` (steps, edges, reasons), `facts` (what an observation proves about one side of a node),
`preemption` (when victims are asked to go), `progress` (which edge a handoff takes now), `acts` (what must be done
outside to make the ledger true).
"""
