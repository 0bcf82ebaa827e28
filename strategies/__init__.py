"""Server-side aggregation and the FedTU unlearning exchange, as Flower strategies."""
