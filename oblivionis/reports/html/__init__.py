"""The pages of a run."""
