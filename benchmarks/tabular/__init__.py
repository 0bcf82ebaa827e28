"""RULER's tabular experiment: classifiers forget records, and their representations are compared with oracles'."""
