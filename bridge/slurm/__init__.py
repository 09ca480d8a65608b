"""Slurm behind `bridge.ports.SlurmPort`: slurmrestd for most, ``scontrol`` for what REST lacks.

`reading` and `hostlists` are pure and turn Slurm's words into the model's; `rest` is the driver. Only `bridge.wiring`
(and tests) build it. Nothing here decides anything: marks and owners are the core's business.
"""
