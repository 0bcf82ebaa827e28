"""Local training and unlearning on a client."""
