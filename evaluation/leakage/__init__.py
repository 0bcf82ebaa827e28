"""How likely sampled answers leak what a model should have forgotten, with guarantees."""
