"""Federated fine-tuning and targeted unlearning of language models on Flower."""

import logging

__version__ = "0.1.0"

# bitsandbytes warns of every float32 product and of optional kernels, on the terminal, wherever it is installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
