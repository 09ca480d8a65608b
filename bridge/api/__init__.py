"""The REST API: what admins, the dashboard and the Slurm agent may read and order.

It reads the ledger and writes only what any replica may write (policy versions, requests, the pause, the fence
acknowledgement); everything that moves a node is done by the leader. Imported by `bridge.wiring` alone.
"""
