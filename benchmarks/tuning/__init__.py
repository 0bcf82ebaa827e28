"""`oblivionis tune`: hyperparameters of unlearning methods, searched on other requests than those reported."""
