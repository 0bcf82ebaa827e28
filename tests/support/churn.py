"""Shared by tests: see `test_churn`."""

QUIET = (
    "evaluation.every=0",
    "evaluation.at_start=false",
    "evaluation.after_unlearn=false",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
    "evaluation.ruler.enabled=false",
    "evaluation.wikimem.enabled=false",
    "evaluation.rebound.enabled=false",
)
