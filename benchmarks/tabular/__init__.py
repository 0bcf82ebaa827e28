"""RULER's tabular experiment: small classifiers forget records, and their representations are compared with oracles'."""
