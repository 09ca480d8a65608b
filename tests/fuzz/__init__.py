"""One seed replays a whole cluster: a story of work, mishaps, broken calls and frozen brokers, and what must hold.

`story` tells what happens from a seed, as data; `stage` plays it on a simulated fleet with the production reconciler
and says what broke; `shrink` finds the shortest part of a story that still breaks. ``make fuzz SEEDS=1000`` plays many
at once; a seed that found a fault is kept in `tests/simulation/test_fuzz.py`.
"""
