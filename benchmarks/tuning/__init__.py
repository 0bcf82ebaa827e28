"""`oblivionis tune`: the hyperparameters of unlearning methods, searched on other requests than those that are reported."""
