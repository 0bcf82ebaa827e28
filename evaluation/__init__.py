"""What is left in a model: likelihoods, generations and the metrics that read them."""
