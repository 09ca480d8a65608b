"""``bridgectl``: starts every process of the bridge, and talks to a broker over REST for people and scripts.

Commands that start a process import it when they run, so that a client needs none of the servers' libraries at start.
"""
