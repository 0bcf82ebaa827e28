"""Deployments on real machines."""
