from dataclasses import dataclass, field
@dataclass
class Measured:
    metrics: dict = field(default_factory=dict)
    log: dict | None = None
    seconds: float = 0.0
    def rows(self, stage, round, moment):
        return [{"stage": stage, "round": round, "moment": moment, "evaluator": "tofu", "metrics": self.metrics}]
    def forget_rouge(self): return {}
class Assessor:
    def __init__(self, *a): pass
    def measure(self, vector, profile, oracle):
        return Measured({"norm": float((vector**2).sum())})
