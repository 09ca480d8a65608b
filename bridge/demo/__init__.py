"""``bridgectl demo``: a few small days on a simulated cluster, with the production broker, API and a real Postgres.

Slurm and Kubernetes are simulated behind the same ports and on their own quick clock; planner, lifecycle, reconciler,
store and API are the ones that run in production. The same seed gives the same days.
"""

from bridge.demo.stage import run

__all__ = ["run"]
