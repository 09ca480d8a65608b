"""Kubernetes' quantities, as its API documentation describes them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bridge.kube.quantities import asked_cpu_m, asked_mib, offered_cpu_m, offered_mib, quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("8", 8),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("2.", 2),
        ("100u", Fraction(1, 10_000)),
        ("100n", Fraction(1, 10_000_000)),
        ("2k", 2_000),
        ("3M", 3_000_000),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1E3", 1_000),
        ("1e3", 1_000),
        ("12e-1", Fraction(6, 5)),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("1Ei", 2**60),
        ("-1", -1),
    ],
)
def test_quantities(text: str, value: Fraction | int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Mi", "1 Gi", "1KiB", "1K", "0x10", "1e", "--1", "1mi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(text)


def test_what_is_asked_is_rounded_up_and_what_is_offered_down() -> None:
    assert (asked_cpu_m("1.0001"), offered_cpu_m("1.0009")) == (1001, 1000)
    assert (asked_mib("1025Ki"), offered_mib("2047Ki")) == (2, 1)
    assert whole("8") == 8
