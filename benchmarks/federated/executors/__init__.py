"""Runs as tasks of a Ray cluster: which machine does which, and what travels to it and back."""
