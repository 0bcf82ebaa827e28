"""Client-level differential privacy: clipped updates, and noise on their mean."""
