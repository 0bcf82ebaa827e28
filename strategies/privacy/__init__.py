"""Client-level differential privacy: clipped client updates, and Gaussian noise on their mean."""
