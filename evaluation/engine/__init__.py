"""How a model is read fast: packing, forward passes, likelihoods, decoding, sampling."""
