"""Which metric can be believed? Every metric on federated models whose training records are known."""
