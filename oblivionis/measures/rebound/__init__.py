"""Rebound: what it measures, how it follows requests round by round, and what its numbers say."""
