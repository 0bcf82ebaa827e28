"""Membership inference: what it measures, whose membership is asked, and what its numbers say."""
