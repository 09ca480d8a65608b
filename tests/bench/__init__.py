"""How long planning takes: ``make bench`` writes the figures that docs and reviews quote. Nothing here is a test."""
