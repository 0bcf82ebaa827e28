"""The plan of an unlearning: which updates it makes, of which records, and which parameters they move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clients import losses
from clients.batch_quantities import NEEDS_STATES, check_quantities
from clients.entropy import Entropy
from clients.flat_parameters import FlatParameters
from clients.training import batches
from clients.unlearning_options import UnlearnOptions
from evaluation.engine.models import decoder_layers


@dataclass(frozen=True, slots=True)
class UpdateKind:
    """One kind of update.

    Attributes
    ----------
    names : tuple of str
        The quantities of the loss.
    wanted : frozenset of str
        All quantities to compute.
    forget, retain, alternatives : bool
        Which records take part.
    regularised : bool
        Whether the entropy term is added.
    """

    names: tuple[str, ...]
    wanted: frozenset[str]
    forget: bool
    retain: bool
    alternatives: bool
    regularised: bool

    @classmethod
    def of(
        cls, loss: losses.Method, names: tuple[str, ...], values: Mapping[str, Any], entropy: Entropy, available: bool
    ) -> UpdateKind:
        """The update of a loss with these quantities.

        Parameters
        ----------
        loss : Method
        names : tuple of str
            Quantities of the phase.
        values : mapping
            Hyperparameters.
        entropy : Entropy
        available : bool
            Whether there are retain records.

        Returns
        -------
        UpdateKind

        Raises
        ------
        ValueError
            If the update needs retain records and there are none, or for an unknown quantity.
        """
        check_quantities(loss.name, names)
        of_retain = [name for name in names if name.startswith("retain")]
        required = bool(of_retain) and loss.needs_retain
        if required and not available:
            raise ValueError(f"{loss.name} needs retain records and the client has none")
        if not required and (not available or values.get("alpha") == 0):
            names = tuple(name for name in names if name not in of_retain)
        regularised = entropy.forget != 0 or (entropy.retain != 0 and available)
        retain = any(name in of_retain for name in names) or (entropy.retain != 0 and available)
        more = {"forget_entropy", "retain_entropy"} if retain else {"forget_entropy"}
        return cls(
            names,
            frozenset(names) | (more if regularised else set()),
            regularised or any(name.startswith("forget") for name in names),
            retain,
            any(name.startswith("alternative") for name in names),
            regularised,
        )

    def per_pass(self, batch_size: int) -> int:
        """Forget records in a pass of `batch_size` sequences; a retain record and another answer may go with each."""
        return max(1, batch_size // max(1, self.forget + self.retain + self.alternatives))

    @property
    def unlearns(self) -> bool:
        """Whether forget records take part, or other answers to their questions."""
        return self.forget or self.alternatives

    @property
    def has_forget_nll(self) -> bool:
        """Whether the likelihoods of the forget records are computed."""
        return any(name.startswith("forget") and name not in NEEDS_STATES for name in self.wanted)


class PlannedUpdate(NamedTuple):
    """One update.

    Attributes
    ----------
    epoch : int, from 0
    kind : UpdateKind
    forget : list of int
        Indices of its forget records.
    retain : list of int
        Indices of as many retain records, or none.
    """

    epoch: int
    kind: UpdateKind
    forget: list[int]
    retain: list[int]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """A method with its hyperparameters, and the updates that each epoch makes of every batch.

    Attributes
    ----------
    loss : Method
    values : mapping
        Hyperparameters of the first update.
    epochs : tuple of tuples of UpdateKind
    rectified : bool
        Whether gradients are projected against those of retain records.
    """

    loss: losses.Method
    values: Mapping[str, Any]
    epochs: tuple[tuple[UpdateKind, ...], ...]
    rectified: bool = False

    @classmethod
    def of(
        cls, loss: losses.Method, parameters: Mapping[str, Any], epochs: int, options: UnlearnOptions, available: bool
    ) -> UpdatePlan:
        """The plan of an unlearning.

        Parameters
        ----------
        loss : Method
        parameters : mapping
            Hyperparameters; those that are missing have their defaults.
        epochs : int
        options : UnlearnOptions
        available : bool
            Whether there are retain records.

        Returns
        -------
        UpdatePlan

        Raises
        ------
        ValueError
            For an unknown hyperparameter, as `UpdateKind.of`, and if gradients are to be rectified and no retain record
            is available or no update has forget records.
        """
        values = loss.parameters(parameters)
        kinds = tuple(
            tuple(
                UpdateKind.of(loss, names, values, options.entropy, available) for names in loss.phases(epoch, values)
            )
            for epoch in range(epochs)
        )
        rectified = options.rectify is not None
        if rectified and not available:
            raise ValueError(f"{loss.name}: to rectify its gradients takes retain records, and the client has none")
        if rectified and not any(kind.unlearns for updates in kinds for kind in updates):
            raise ValueError(f"{loss.name} has no gradient of forget records to rectify")
        return cls(loss, values, kinds, rectified)

    @property
    def paired(self) -> bool:
        """Whether retain records take part."""
        return self.rectified or any(kind.retain for updates in self.epochs for kind in updates)

    @property
    def wanted(self) -> frozenset[str]:
        """All quantities that any update computes."""
        return frozenset(name for updates in self.epochs for kind in updates for name in kind.wanted)

    def updates(self, forget: int, retain: int, size: int, seed: int) -> Iterator[PlannedUpdate]:
        """All updates in order.

        Parameters
        ----------
        forget, retain : int
            How many records there are.
        size : int
            Most forget records of an update.
        seed : int
            Of the order of the records.

        Yields
        ------
        PlannedUpdate
        """
        order = torch.Generator().manual_seed(seed)
        cycle = _Cycle(retain, torch.Generator().manual_seed(seed + 1))
        for epoch, kinds in enumerate(self.epochs):
            for chosen in batches(forget, size, order):
                partners = cycle.draw(len(chosen)) if self.paired else []
                for kind in kinds:
                    yield PlannedUpdate(epoch, kind, chosen, partners)


class _Cycle:
    """Endless sampling from range(count) without replacement, reshuffled when used up."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._left: list[int] = []

    def draw(self, number: int) -> list[int]:
        """The next `number` of them."""
        drawn: list[int] = []
        while len(drawn) < number:
            if not self._left:
                self._left = torch.randperm(self._count, generator=self._generator).tolist()
            take = number - len(drawn)
            drawn += self._left[:take]
            self._left = self._left[take:]
        return drawn


def moved_layers(
    model: nn.Module, flat: FlatParameters, loss: losses.Method, values: Mapping[str, Any]
) -> tuple[int, Tensor | None]:
    """Decoder layer whose states a loss reads, and which parameters move for it.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    loss : Method
    values : mapping
        Hyperparameters.

    Returns
    -------
    layer : int
        From 0.
    moving : tensor (size,), bool, or None
        0 and None for a loss that reads no layer.

    Raises
    ------
    ValueError
        Where the model has no such layer, or nothing in the layers that move is trained.
    """
    if loss.layers_in is None:
        return 0, None
    name, modules = decoder_layers(model)
    layers = loss.layers_in(len(modules), **values)
    moving = flat.mask([f".{name}.{layer}." for layer in layers])
    if not moving.any():
        raise ValueError(f"{loss.name}: nothing is trained in the layers {layers[0]} to {layers[-1]}")
    return layers[-1], moving
