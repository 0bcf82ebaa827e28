"""FedTU's rounds: who is selected, what is sent, what of the replies counts."""
