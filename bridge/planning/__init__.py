"""What should move, and for everything that does not, why not. Pure functions of a snapshot, a policy and the time.

`demand` reads both worlds' queues into one shape, `snapshot` holds what may be moved, `planner` decides, `orders`
judges what a person asked for by hand, and `adoption` says who owns a node on its first day.
"""
