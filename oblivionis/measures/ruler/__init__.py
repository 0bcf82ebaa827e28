"""RULER: what it measures of the model's representations, what it compares with, and what its numbers say."""
