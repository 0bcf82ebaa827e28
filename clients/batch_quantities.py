"""Quantities of one batch of forget and retain records that unlearning losses may request."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clients.distributions import TokenStatistics, row_leads, row_margins, row_statistics
from clients.reference_models import Received
from evaluation.engine.forward import AnswerRows, answer_rows, layer_states, packed_batch, token_log_probs
from evaluation.engine.models import model_device
from evaluation.engine.packing import PackedBatch, sequence_nll
from evaluation.engine.sequences import TokenSequence

RETAIN_LOSSES = ("nll", "kl")


class ReferenceModels(NamedTuple):
    """Reference models and settings of the quantities of a batch.

    Attributes
    ----------
    received : Received, optional
        The model as received.
    teacher : nn.Module, optional
        A randomly initialised model.
    temperature : float
        T of the divergences.
    strength : float
        By how much `BatchQuantities.forget_adjusted_kl` lowers the true tokens' logits.
    layer : int
        The decoder layer whose states are read.
    retain_loss : {"nll", "kl"}
        What `BatchQuantities.retain_loss` is.
    holds : bool
        Whether some retain records are held (`References.retain_held`).
    base : Received, optional
        The untouched base model.
    sharpness : float
        What its logits are multiplied by in `BatchQuantities.forget_target_kl`.
    """

    received: Received | None = None
    teacher: nn.Module | None = None
    temperature: float = 1.0
    strength: float = 0.0
    layer: int = 0
    retain_loss: str = "nll"
    holds: bool = False
    base: Received | None = None
    sharpness: float = 1.0


class References(NamedTuple):
    """Reference values of the records of a batch, computed beforehand; None: not requested.

    Attributes
    ----------
    forget_log_p, alternative_log_p : tensor (B,)
        Log-likelihood under the model as received of each forget answer and of each alternative answer, nats.
    retain_nll : tensor (B,)
        Mean negative log-likelihood of each retain record under the model as received, nats per token.
    retain_held : tensor (B,), bool
        Which retain records are held to what the model as received says of them, whatever the retain loss.
    forget_rows, retain_rows : sequence of B AnswerRows
        What predicts the answer tokens of each record in the model as received.
    forget_target_nll : tensor (B,)
        Up to which the forget records are forgotten, nats per token.
    forget_target_lowered : sequence of B tensors (L_i,)
        By how much the base model's logits of their answer tokens are too high.
    forget_target_rows : sequence of B AnswerRows
        What predicts these tokens in the base model, where known.
    forget_recited : sequence of B tensors (L_i,), bool
        The answer tokens that count as recited (`calibrated_forgetting.Target.recited`).
    """

    forget_log_p: Tensor | None = None
    alternative_log_p: Tensor | None = None
    retain_nll: Tensor | None = None
    retain_held: Tensor | None = None
    forget_rows: Sequence[AnswerRows] | None = None
    retain_rows: Sequence[AnswerRows] | None = None
    forget_target_nll: Tensor | None = None
    forget_target_lowered: Sequence[Tensor] | None = None
    forget_target_rows: Sequence[AnswerRows] | None = None
    forget_recited: Sequence[Tensor] | None = None


class BatchQuantities:
    """Quantities of forget records, and as many retain records (or none), under a model.

    A loss gets those quantities that its positional parameters name: the properties below. A new method that needs
    something new adds a property here.

    Parameters
    ----------
    model : nn.Module
    forget, retain : sequence of TokenSequence
    alternatives : sequence of TokenSequence
        Where a loss needs them, another answer to the question of each forget record.
    wanted : collection of str
        Quantities that will be read, so that all records go through the model once, by the cheapest way that gives them
        all: entropies and divergences need logits, which likelihoods alone do not.
    references : References, optional
    around : ReferenceModels, optional
    """

    def __init__(
        self,
        model: nn.Module,
        forget: Sequence[TokenSequence],
        retain: Sequence[TokenSequence],
        *,
        alternatives: Sequence[TokenSequence] = (),
        wanted: Collection[str] = (),
        references: References | None = None,
        around: ReferenceModels | None = None,
    ) -> None:
        self.model, self.forget, self.retain = model, list(forget), list(retain)
        self.alternatives = list(alternatives)
        self._around = around or ReferenceModels()
        self._wanted = expanded(wanted, self._around.retain_loss, holds=self._around.holds)
        self._references = references or References()
        count = len(self.forget) + len(self.retain)
        self._retained, self._replaced = slice(len(self.forget), count), slice(count, None)

    @property
    def forget_log_p(self) -> Tensor:
        """(B,) log-likelihood of each forget answer: the sum over its tokens, nats."""
        return -self._pass["nll_sum"][: len(self.forget)]

    @property
    def forget_nll(self) -> Tensor:
        """(B,) mean negative log-likelihood over the answer tokens of each forget record, nats."""
        return self._pass["nll"][: len(self.forget)]

    @property
    def forget_token_log_p(self) -> list[Tensor]:
        """(L_i,) each: log-likelihood of every answer token of each forget record, nats."""
        lengths = [len(record.answer) for record in self.forget]
        return list(self._pass["token_log_p"][: sum(lengths)].split(lengths))

    @property
    def forget_entropy(self) -> Tensor:
        """(B,) mean entropy of the distributions that predict the answer tokens of each forget record, nats."""
        return self._get("entropy", "forget_entropy")[: len(self.forget)]

    @property
    def forget_reference_log_p(self) -> Tensor:
        """(B,) `forget_log_p` under the model as received. ValueError if it was not computed."""
        if self._references.forget_log_p is None:
            raise ValueError("the reference log-likelihoods were not computed")
        return self._references.forget_log_p

    @property
    def forget_margin(self) -> Tensor:
        """(B,) mean squared margin (max_k z_k − mean_k z_k)² of the logits z over each forget answer's tokens.

        It is 0 where a distribution is uniform.
        """
        return self._get("forget_margin", "forget_margin")

    @property
    def forget_lead(self) -> Tensor:
        """(B,) mean of p(true token) − max p(other token) over each forget answer's tokens, from −1 to 1."""
        return self._get("forget_lead", "forget_lead")

    @property
    def forget_target_nll(self) -> Tensor:
        """(B,) estimated `forget_nll` of a model that never saw the records. ValueError without a target."""
        if self._references.forget_target_nll is None:
            raise ValueError("forget_target_nll: no target was estimated")
        return self._references.forget_target_nll

    @property
    def forget_reference_kl(self) -> Tensor:
        """(B,) mean over the answer tokens of each forget record of T² KL(received‖model), nats."""
        return self._get("forget_reference_kl", "forget_reference_kl")

    @property
    def forget_target_kl(self) -> Tensor:
        """(B,) mean over the answer tokens of each forget record of KL(target‖model), nats.

        The target is the base model's sharpened distribution, with the true token as likely as a model that never saw
        the record would find it.
        """
        return self._get("forget_target_kl", "forget_target_kl")

    @property
    def forget_recited_lead(self) -> Tensor:
        """(B,) mean of max(0, p(true token) − max p(other token)) over the recited tokens of each forget record, from 0
        to 1; 0 where there are none."""
        if self._references.forget_recited is None:
            return self.forget_nll.new_zeros(len(self.forget))
        return self._get("forget_recited_lead", "forget_recited_lead")

    @property
    def forget_adjusted_kl(self) -> Tensor:
        """(B,) as `forget_reference_kl`, from the received distributions with the true token's logit lowered."""
        return self._get("forget_adjusted_kl", "forget_adjusted_kl")

    @property
    def forget_teacher_kl(self) -> Tensor:
        """(B,) mean over the answer tokens of each forget record of T² KL(teacher‖model), nats."""
        return self._get("forget_teacher_kl", "forget_teacher_kl")

    @property
    def forget_states(self) -> list[Tensor]:
        """(L_i, d) each: states after the layer at every token, prompt and answer, of each forget record."""
        return self._states[0]

    @property
    def alternative_log_p(self) -> Tensor:
        """(B,) log-likelihood of the alternative answer to each forget record's question, nats."""
        return -self._alternative("nll_sum")

    @property
    def alternative_nll(self) -> Tensor:
        """(B,) mean negative log-likelihood over the tokens of that answer, nats."""
        return self._alternative("nll")

    @property
    def alternative_reference_log_p(self) -> Tensor:
        """(B,) `alternative_log_p` under the model as received. ValueError if it was not computed."""
        if self._references.alternative_log_p is None:
            raise ValueError("the reference log-likelihoods of the alternative answers were not computed")
        return self._references.alternative_log_p

    @property
    def retain_log_p(self) -> Tensor | None:
        """(B,) log-likelihood of each retain answer, nats; None without retain records."""
        return -self._pass["nll_sum"][self._retained] if self.retain else None

    @property
    def retain_nll(self) -> Tensor | None:
        """(B,) mean negative log-likelihood over the answer tokens of each retain record, nats; None without any."""
        return self._pass["nll"][self._retained] if self.retain else None

    @property
    def retain_reference_nll(self) -> Tensor | None:
        """(B,) `retain_nll` under the model as received, None without retain records."""
        if self.retain and self._references.retain_nll is None:
            raise ValueError("the reference likelihoods of the retain records were not computed")
        return self._references.retain_nll if self.retain else None

    @property
    def retain_loss(self) -> Tensor | None:
        """(B,) `retain_nll` or `retain_reference_kl`, by `ReferenceModels.retain_loss`, of held records the latter.

        None without retain records.
        """
        if not self.retain or self._around.retain_loss == "kl":
            return self.retain_reference_kl
        held = self._references.retain_held
        if held is None or self.retain_nll is None or self.retain_reference_kl is None:
            return self.retain_nll
        return torch.where(held.to(self.retain_nll.device), self.retain_reference_kl, self.retain_nll)

    @property
    def retain_entropy(self) -> Tensor | None:
        """(B,) `forget_entropy` of each retain record, None without any."""
        return self._get("entropy", "retain_entropy")[self._retained] if self.retain else None

    @property
    def retain_reference_kl(self) -> Tensor | None:
        """(B,) `forget_reference_kl` of each retain record, None without any."""
        return self._get("retain_reference_kl", "retain_reference_kl") if self.retain else None

    @property
    def retain_states(self) -> list[Tensor] | None:
        """`forget_states` of each retain record, None without any."""
        return self._states[1] if self.retain else None

    @property
    def retain_reference_states(self) -> list[Tensor] | None:
        """`retain_states` of the model as received, None without retain records."""
        return self._states[2] if self.retain else None

    def quantities(self, names: Collection[str]) -> dict[str, Tensor | list[Tensor] | None]:
        """The quantities of these names."""
        return {name: getattr(self, name) for name in names}

    def _get(self, key: str, name: str) -> Tensor:
        """A quantity of the pass; ValueError if it was not among `wanted`."""
        if key not in self._pass:
            raise ValueError(f"{name} was not computed: `wanted` does not name it")
        return self._pass[key]

    def _alternative(self, key: str) -> Tensor:
        """A quantity of the alternative answers."""
        if not self.alternatives:
            raise ValueError("the alternative answers were not given")
        return self._pass[key][self._replaced]

    @cached_property
    def _pass(self) -> dict[str, Tensor]:
        """Values of all records (or tokens), first of forget, then of retain records, then of alternative answers;
        divergences and margins of the forget or retain records alone."""
        batch = packed_batch(self.model, [*self.forget, *self.retain, *self.alternatives])
        if not self._wanted & BY_LOGITS:
            return _likelihoods(token_log_probs(self.model, batch), batch)
        # The references come first: the model must not change between its forward pass and the gradient.
        references = {name: self._reference(name) for name in _AGAINST if name in self._wanted and self._records(name)}
        rows = answer_rows(self.model, batch)
        entropies = not self._wanted.isdisjoint(("forget_entropy", "retain_entropy"))
        values: dict[str, Tensor] = {}
        pieces: list[TokenStatistics] = []
        start = 0
        for prefix, records in (("forget", self.forget), ("retain", self.retain), ("alternative", self.alternatives)):
            part = slice(start, start + sum(len(record.answer) for record in records))
            start = part.stop
            if not records:
                continue
            if f"{prefix}_margin" in self._wanted:
                values[f"{prefix}_margin"] = _record_means(row_margins(rows[part]), records)
            if f"{prefix}_lead" in self._wanted:
                values[f"{prefix}_lead"] = _record_means(row_leads(rows[part], batch.labels[part]), records)
            if f"{prefix}_recited_lead" in self._wanted and self._references.forget_recited is not None:
                values["forget_recited_lead"] = self._recited_leads(rows[part], batch.labels[part])
            names = [name for name in references if name.startswith(prefix)]
            statistics = None
            for name in names or [""]:
                against = (references.get(name), self._around.temperature, self._lowered(name))
                statistics = row_statistics(rows[part], batch.labels[part], *against, entropies)
                if statistics.kl is not None:
                    values[name] = _record_means(statistics.kl, self._records(name))
            assert statistics is not None
            pieces.append(statistics)
        values |= _likelihoods(torch.cat([piece.log_p for piece in pieces]), batch)
        if entropies:
            of_tokens = [piece.entropy for piece in pieces if piece.entropy is not None]
            values["entropy"] = sequence_nll(-torch.cat(of_tokens), batch)[1]
        return values

    def _lowered(self, name: str) -> float | Tensor:
        """How much the true tokens' logits are lowered in the reference of the divergence `name`."""
        if name == "forget_adjusted_kl":
            return self._around.strength
        lowered = self._references.forget_target_lowered if name == "forget_target_kl" else None
        return 0.0 if lowered is None else torch.cat(list(lowered))

    def _recited_leads(self, rows: AnswerRows, labels: Tensor) -> Tensor:
        """Mean lead (B,), at least 0, of each forget record's recited tokens."""
        masks = [mask.to(labels.device) for mask in self._references.forget_recited or ()]
        index = torch.cat(masks).nonzero().squeeze(1)
        leads = row_leads(rows[index], labels[index]).clamp(min=0)
        parts = leads.split([int(mask.sum()) for mask in masks])
        return torch.stack([part.mean() if part.numel() else leads.new_zeros(()) for part in parts])

    def _records(self, name: str) -> list[TokenSequence]:
        """The records that a quantity is about."""
        return self.forget if name.startswith("forget") else self.retain

    def _reference(self, name: str) -> AnswerRows:
        """The predictions of the reference model of the divergence `name`."""
        if (known := self._known(name)) is not None:
            rows = AnswerRows(torch.cat([one.values for one in known]), known[0].head)
            return rows.scaled(self._around.sharpness) if name == "forget_target_kl" else rows
        batch = packed_batch(self.model, self._records(name))
        if name == "forget_teacher_kl":
            if self._around.teacher is None:
                raise ValueError(f"{name} needs a teacher")
            with torch.no_grad():
                return answer_rows(self._around.teacher, batch)
        if name == "forget_target_kl":
            if self._around.base is None:
                raise ValueError(f"{name} needs the base model")
            with self._around.base.in_place():
                return answer_rows(self.model, batch).scaled(self._around.sharpness)
        with self._received().in_place():
            return answer_rows(self.model, batch)

    def _known(self, name: str) -> Sequence[AnswerRows] | None:
        """The predictions of the reference model of the divergence `name`, record by record, if they were given."""
        if name == "forget_target_kl":
            return self._references.forget_target_rows
        if name not in NEEDS_RECEIVED:
            return None
        return self._references.forget_rows if name.startswith("forget") else self._references.retain_rows

    @cached_property
    def _states(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """States after the layer by record: of forget and retain records, and of the latter as received."""
        received: list[Tensor] = []
        if self.retain and "retain_reference_states" in self._wanted:
            with self._received().in_place():
                received = self._layer_states(self.retain)
        states = self._layer_states([*self.forget, *self.retain])
        return states[: len(self.forget)], states[len(self.forget) :], received

    def _layer_states(self, records: Sequence[TokenSequence]) -> list[Tensor]:
        """States after the layer of each record."""
        batch = PackedBatch.build(records, model_device(self.model), last=True)
        return list(layer_states(self.model, batch, self._around.layer).split(batch.lengths.tolist()))

    def _received(self) -> Received:
        """The model as received; ValueError if it was not kept."""
        if self._around.received is None:
            raise ValueError("the model as received was not kept")
        return self._around.received


QUANTITIES = frozenset(name for name, value in vars(BatchQuantities).items() if isinstance(value, property))
_AGAINST = ("forget_reference_kl", "forget_target_kl", "forget_adjusted_kl", "forget_teacher_kl", "retain_reference_kl")
BY_LOGITS = frozenset(
    {*_AGAINST, "forget_entropy", "retain_entropy", "forget_margin", "forget_lead", "forget_recited_lead"}
)
"""Quantities that need logits; likelihoods alone do not."""
NEEDS_RECEIVED = frozenset(
    {"forget_reference_kl", "forget_adjusted_kl", "retain_reference_kl", "retain_reference_states"}
)
NEEDS_STATES = frozenset({"forget_states", "retain_states", "retain_reference_states"})


def check_quantities(method: str, names: Collection[str]) -> None:
    """Check that quantities exist.

    Parameters
    ----------
    method : str
        For the message.
    names : collection of str

    Raises
    ------
    ValueError
        For a name that is not in `QUANTITIES`, with the nearest ones.
    """
    for name in names:
        if name not in QUANTITIES:
            near = difflib.get_close_matches(name, QUANTITIES, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(sorted(QUANTITIES))}"
            raise ValueError(f"{method} asks for {name!r}, which no batch has; {hint}")


def expanded(names: Collection[str], retain_loss: str, *, holds: bool = False) -> frozenset[str]:
    """Quantities with the one that the chosen retain loss needs.

    Parameters
    ----------
    names : collection of str
    retain_loss : {"nll", "kl"}
    holds : bool
        As in `ReferenceModels`.

    Returns
    -------
    frozenset of str
    """
    more = {"retain_reference_kl"} if "retain_loss" in names and (holds or retain_loss == "kl") else set()
    return frozenset(names) | more


def _likelihoods(log_p: Tensor, batch: PackedBatch) -> dict[str, Tensor]:
    """Log-likelihoods (M,) of all answer tokens, and their negated sum and mean for each record (B,)."""
    nll_sum, nll = sequence_nll(log_p, batch)
    return {"token_log_p": log_p, "nll_sum": nll_sum, "nll": nll}


def _record_means(values: Tensor, records: Sequence[TokenSequence]) -> Tensor:
    """Mean (B,) over each record's answer tokens of values (M,), one record after the other."""
    return torch.stack([part.mean() for part in values.split([len(record.answer) for record in records])])


@torch.no_grad()
def log_likelihoods(model: nn.Module, sequences: Sequence[TokenSequence], batch_size: int) -> Tensor:
    """Log-likelihood of each answer given its prompt, in evaluation mode and without gradients.

    Parameters
    ----------
    model : nn.Module
    sequences : sequence of n TokenSequence
    batch_size : int

    Returns
    -------
    tensor (n,), nats
    """
    training = model.training
    model.eval()
    try:
        parts = [
            BatchQuantities(model, sequences[start : start + batch_size], []).forget_log_p
            for start in range(0, len(sequences), batch_size)
        ]
    finally:
        model.train(training)
    return torch.cat(parts)
