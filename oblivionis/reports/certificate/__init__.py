"""Signed certificates of erasure."""
