"""MUSE: what it measures of a model of plain texts, and its prompts."""
