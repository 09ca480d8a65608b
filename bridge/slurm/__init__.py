"""Slurm behind `bridge.ports.SlurmPort`: slurmrestd or pyslurm for most, ``scontrol`` for what they lack.

`reading` and `show` are pure and turn Slurm's words into the model's; `rest` and `pyslurm` are the drivers, and share
`latch` and `telling`. Only `bridge.wiring` (and tests) build one. Nothing here decides anything: marks and owners are
the core's business.
"""
