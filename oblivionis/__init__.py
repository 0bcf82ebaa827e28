"""Federated fine-tuning and targeted unlearning of language models on Flower."""

__version__ = "0.1.0"
