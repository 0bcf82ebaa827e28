"""The metrics that speak of the forget records, and which way each moves when a model knows them.

A metric that is better when it is higher, or lower, says so in the catalogue: knowing is the other way. Where the
catalogue calls the retrained model's value the best, the way is written here with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oblivionis.config.schema import MEMBERSHIP
from oblivionis.measures import registry

_RECITED = "a model that knows says the true answer"
_SURE = "answers from memory are alike"
_CATALOGUE = "better the other way, says the catalogue"
_HIGHER: dict[str, dict[str, str]] = {
    "TOFU": {
        "forget_prob": "the true answer is likelier",
        "forget_rouge": _RECITED,
        "forget_extraction_strength": "fewer of the answer's tokens must be given",
        "forget_exact_memorization": "more of the answer's tokens are the likeliest",
        "forget_ks": _CATALOGUE,
    },
    "Leakage bounds": {
        **dict.fromkeys(
            (
                *("leakage_mean", "leakage_ed", "leakage_max", "leakage_mu_lower", "leakage_mu_upper", "leakage_m_mu"),
                *("leakage_m_bin", "leakage_m_bin_share", "leakage_greedy", "leakage_greedy_share"),
            ),
            _RECITED,
        ),
    },
    "RULER, Lens 2": {"ruler_mean_rank": "nearer to retained records: residual memorisation, says RULER"},
    "WikiMem": dict.fromkeys(
        ("wikimem_forget_strict", "wikimem_forget_lenient", "wikimem_forget_strength", "wikimem_forget_likeliest"),
        "true facts come before those of others",
    ),
    "Membership": {
        **{f"membership_auc_{name}": "members score above what nobody trained on" for name in MEMBERSHIP},
        **{f"membership_auc_{name}_difference": "the same, less the retrained model's" for name in MEMBERSHIP},
    },
    "Fluency": {},
}
_LOWER: dict[str, dict[str, str]] = {
    "TOFU": {
        "forget_truth_ratio": "wrong answers are far less likely than the right one",
        "forget_quality": _CATALOGUE,
    },
    "Leakage bounds": dict.fromkeys(("leakage_std", "leakage_m_sigma", "leakage_diversity"), _SURE),
    "RULER, Lens 1": {
        "ruler_gap": "less as in the retrained model than retained records: residual memorisation, says RULER",
        "ruler_oracle_similarity": _CATALOGUE,
        "ruler_shift": _CATALOGUE,
    },
    "WikiMem": {
        "wikimem_forget_unmemorized": "fewer people of whom nothing ranks first",
        "wikimem_forget_rank": "fewer values of others score above the true one",
    },
    "Membership": {f"membership_auc_{name}_p": _CATALOGUE for name in MEMBERSHIP},
    "Fluency": {
        "fluency_forget_nll": "true sentences are language; fluency is not meant to tell",
        "fluency_forget_gibberish": "the same",
        "fluency_forget_endless": "a remembered answer ends where the true one does",
    },
}
_FAMILIES = ("TOFU", "Leakage bounds", "RULER, Lens 1", "RULER, Lens 2", "WikiMem", "Membership", "Fluency")


@dataclass(frozen=True)
class Judge:
    """A metric under test. sign: 1 where it should be higher when the model knows, −1 where lower; why: the reason."""

    key: str
    family: str
    sign: int
    why: str

    @property
    def label(self) -> str:
        """What readers call the metric."""
        known = registry.catalogue()[self.key]
        return known.label


def _judges() -> Iterator[Judge]:
    for family in _FAMILIES:
        found = [Judge(key, family, 1, why) for key, why in _HIGHER.get(family, {}).items()]
        found += [Judge(key, family, -1, why) for key, why in _LOWER.get(family, {}).items()]
        order = list(registry.catalogue())
        yield from sorted((j for j in found if j.key in order), key=lambda judge: order.index(judge.key))


JUDGES = tuple(_judges())
"""Every metric that is judged, family by family."""
