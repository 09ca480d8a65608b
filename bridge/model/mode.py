"""How much a broker may do. Chosen by whoever starts it, and the same for as long as it runs."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """`ACTIVE`: everything. `DRY_RUN`: lead and say what it would do, change nothing outside. `READ_ONLY`: look on."""

    ACTIVE = "active"
    DRY_RUN = "dry_run"
    READ_ONLY = "read_only"
