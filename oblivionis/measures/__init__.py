"""What a model still knows: a file or a folder for each measure, and what runs them on a global model."""
