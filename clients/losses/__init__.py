"""Unlearning losses, one file a method."""
