"""All that this package takes of Flower beyond its public interface; nothing else here may (a test checks it).

A module per process that needs it, for each imports what no other does: `names` nothing at all, `grids` the
simulation's link state, `superexec` what starts a node's processes. `tests/unit/oblivionis/test_flower.py` has a test
for each of these, which says what a new Flower changed. What is shared with `strategies` stands in
`strategies.flower_internals`.
"""
