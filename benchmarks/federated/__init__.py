"""Suites of the kind `federated`: a matrix of runs that share their stages, and the tables made of them."""
