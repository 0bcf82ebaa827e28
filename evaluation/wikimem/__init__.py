"""Which facts about a person a model has memorised: canaries, look-alike names and calibrated ranks (WikiMem)."""
