"""A simulated Slurm and a simulated Kubernetes behind the bridge's own ports, on one fake clock, with faults.

The production reconciler, planner and lifecycle run on it unchanged: the demo, the seeded fault tests and the trace
replays are that one program. Everything is single-threaded and a function of the seed. May import `bridge.model` and
`bridge.ports`; only wiring and tests import it.

From the ground up: `clock` (time and what happens later), `machines` (which process really runs where), `faults`
(what goes wrong with a call), `slurm` and `kube` (the two schedulers), `oracle` (is an invariant broken at this very
moment), `workload` (who wants what, when), `world` (all of it together).
"""
