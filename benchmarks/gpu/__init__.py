"""A kit for a machine with a GPU: what the tests need CUDA for, whole experiments, and speed against the plain way."""
