"""slurm-kube-bridge: lends GPU nodes between a Slurm partition and a Kubernetes pool.

Imports point one way (import-linter checks it): ``model <- lifecycle, planning <- ports <- store, slurm, kube,
simulation``; ``reconciler`` sees only the core and the ports, ``wiring`` builds the adapters, ``cli`` talks HTTP.
"""
