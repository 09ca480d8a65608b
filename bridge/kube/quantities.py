"""Kubernetes' quantities: ``500m``, ``1.5``, ``128974848``, ``129e6``, ``123Mi``, ``2k``. Pure.

The grammar is that of ``k8s.io/apimachinery/pkg/api/resource``: ``E`` alone is exa, ``E`` before digits an exponent.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]))?$")
_FACTORS: dict[str, Fraction] = {
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1, 1000) ** power for power, suffix in enumerate(("m", "u", "n"), 1)},
}
_MIB = 2**20


@lru_cache(maxsize=4096)
def quantity(text: str) -> Fraction:
    """The exact number. `ValueError` for what no apiserver would accept."""
    found = _QUANTITY.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    number, exponent, suffix = found.groups()
    value = Fraction(number.rstrip("."))
    if exponent:
        return value * Fraction(10) ** int(exponent[1:])
    return value * _FACTORS[suffix] if suffix else value


@lru_cache(maxsize=4096)
def asked_cpu_m(text: str) -> int:
    """Thousandths of a CPU that a pod asks for, rounded up."""
    return ceil(quantity(text) * 1000)


@lru_cache(maxsize=4096)
def asked_mib(text: str) -> int:
    """MiB of memory that a pod asks for, rounded up."""
    return ceil(quantity(text) / _MIB)


def offered_cpu_m(text: str) -> int:
    """Thousandths of a CPU that a node offers, rounded down."""
    return floor(quantity(text) * 1000)


def offered_mib(text: str) -> int:
    """MiB of memory that a node offers, rounded down."""
    return floor(quantity(text) / _MIB)


@lru_cache(maxsize=4096)
def whole(text: str) -> int:
    """Of what exists in whole pieces only, such as GPUs."""
    return ceil(quantity(text))
