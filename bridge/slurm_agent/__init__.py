"""The agent on slurmctld's host: keeps the Prolog's fence file and the submit plugin's policy file fresh.

A process of its own (``bridgectl slurm-agent``). It talks to the broker's REST API, writes two files, and is the only
writer of them; what it could not get whole and valid it does not write.
"""

from bridge.slurm_agent.agent import run

__all__ = ["run"]
