"""RULER: does an unlearned model still hold forgotten records in its representations? Metrics and their statistics."""
