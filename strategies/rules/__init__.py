"""Aggregators: how clients' updates become a server step, one file each."""
