"""TOFU: what it measures of the model's answers, and what its forget quality can say."""
