"""The words of the field as frozen types. Imports nothing of the bridge; everything may import it.

Times are timezone-aware UTC ``datetime``; durations are ``float`` seconds in names ending with ``_s``; a *node name*
is the bridge's own name for a machine, which Slurm and Kubernetes may each spell differently (see `Node`).
"""
