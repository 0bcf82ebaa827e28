"""Which metric can be believed? Every metric beside federated models of which it is known what they were trained on."""
