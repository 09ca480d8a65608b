"""The parts of `bridge.planning.explain`: the shape of an answer, what it is read from, each kind of subject."""
