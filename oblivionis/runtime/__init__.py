"""Simulated clients: processes of this machine, or actors of a Ray cluster, as a Flower `Grid`."""
