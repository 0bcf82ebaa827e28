"""What is measured of answers and likelihoods: TOFU, MUSE, membership inference, ROUGE, rebound, verdicts."""
