"""The quantities that unlearning losses may ask for, of one batch of forget and retain records."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cached_property

import torch
from torch import Tensor, nn

from clients.entropy import log_probs_and_entropies
from clients.losses import Method
from evaluation.forward import answer_logits, token_log_probs
from evaluation.packing import PackedBatch, Sequence, sequence_nll


class Step:
    """Forget records, as many retain records (or none), and what the model says about them.

    A loss gets those quantities that its positional parameters name. Each is computed when it is first asked for;
    forget and retain records go through the model in one pass. A new method that needs something new (hidden states,
    say) adds a property here and its name to `QUANTITIES`; one that names `step` gets this object. `entropies` says
    that entropies will be asked for too: the pass then goes by the logits, which the likelihoods alone do not need.
    """

    def __init__(
        self,
        model: nn.Module,
        forget: Seq[Sequence],
        retain: Seq[Sequence],
        *,
        number: int,
        forget_reference_log_p: Tensor | None = None,
        entropies: bool = False,
    ) -> None:
        self.model, self.forget, self.retain, self.number = model, list(forget), list(retain), number
        self._reference, self._with_entropies = forget_reference_log_p, entropies

    @property
    def step(self) -> Step:
        """The object itself; `number` counts the updates from 0."""
        return self

    @cached_property
    def _pass(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sum and mean of the negative log-likelihood and mean entropy of all records, (B,) each, forget ones first."""
        device = next(self.model.parameters()).device
        batch = PackedBatch.build([*self.forget, *self.retain], device)
        if not self._with_entropies:
            return *sequence_nll(token_log_probs(self.model, batch), batch), None
        logp, entropy = log_probs_and_entropies(answer_logits(self.model, batch), batch.labels)
        return *sequence_nll(logp, batch), sequence_nll(-entropy, batch)[1]

    def _entropies(self) -> Tensor:
        entropies = self._pass[2]
        if entropies is None:
            raise ValueError("the entropies were not computed")
        return entropies

    @property
    def forget_log_p(self) -> Tensor:
        """(B,) log-likelihood of each forget answer: the sum over its tokens, nats."""
        return -self._pass[0][: len(self.forget)]

    @property
    def forget_nll(self) -> Tensor:
        """(B,) mean negative log-likelihood over the answer tokens of each forget record."""
        return self._pass[1][: len(self.forget)]

    @property
    def forget_entropy(self) -> Tensor:
        """(B,) mean over the answer tokens of each forget record of the entropy of their distributions, nats."""
        return self._entropies()[: len(self.forget)]

    @property
    def forget_reference_log_p(self) -> Tensor:
        """(B,) `forget_log_p` under the model as received."""
        if self._reference is None:
            raise ValueError("the reference log-likelihoods were not computed")
        return self._reference

    @property
    def retain_log_p(self) -> Tensor | None:
        """(B,) log-likelihood of each retain answer, None without retain records."""
        return -self._pass[0][len(self.forget) :] if self.retain else None

    @property
    def retain_nll(self) -> Tensor | None:
        """(B,) mean negative log-likelihood over the answer tokens of each retain record, None without any."""
        return self._pass[1][len(self.forget) :] if self.retain else None

    @property
    def retain_entropy(self) -> Tensor | None:
        """(B,) `forget_entropy` of each retain record, None without any."""
        return self._entropies()[len(self.forget) :] if self.retain else None

    def loss(self, method: Method, parameters: dict[str, float]) -> Tensor:
        """The method's loss on these records, a scalar."""
        return method.function(
            **{name: getattr(self, name) for name in (*method.required, *method.optional)}, **parameters
        )


QUANTITIES = frozenset(name for name, value in vars(Step).items() if isinstance(value, property))


@torch.no_grad()
def log_likelihoods(model: nn.Module, sequences: Seq[Sequence], batch_size: int) -> Tensor:
    """log p(answer | prompt) of each sequence, (n,), nats, in evaluation mode and without gradients."""
    training = model.training
    model.eval()
    try:
        parts = [
            Step(model, sequences[start : start + batch_size], [], number=0).forget_log_p
            for start in range(0, len(sequences), batch_size)
        ]
    finally:
        model.train(training)
    return torch.cat(parts)
