"""Base models, adapters and fingerprints."""
