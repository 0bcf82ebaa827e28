"""From a global model and the records of a run to what the model still knows."""
