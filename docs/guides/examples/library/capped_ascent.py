"""A loss of one's own in a whole run. The file is both: the loss that has its name, and the program that uses it.

From the command line: oblivionis simulate smoke unlearning=capped_ascent.py unlearning.params.cap=3
"""

from torch import Tensor

from oblivionis import simulate

LIMITS = {"cap": {"help": "Loss beyond which a record is pushed no further.", "above": 0, "unit": "nats"}}


def capped_ascent(forget_nll: Tensor, retain_loss: Tensor | None = None, *, cap: float = 4.0) -> Tensor:
    """-E_forget min(l(y|x), cap) + E_retain l(y|x), of mean negative log-likelihoods (B,) in nats."""
    loss = -forget_nll.clamp(max=cap).mean()
    return loss if retain_loss is None else loss + retain_loss.mean()


if __name__ == "__main__":
    run = simulate("smoke", [f"unlearning={__file__}", "unlearning.params.cap=3", "unlearning.epochs=10"])
    for stage, metrics in run.metrics.items():
        print(f"{stage:9}  forget {metrics['forget_prob']:.3f}  retain {metrics['retain_prob']:.3f}")
    print(run.path / "report.html")
