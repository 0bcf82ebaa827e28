"""What is computed where nobody says otherwise: the options and levels that reports and documents rely on."""

from __future__ import annotations

import importlib
import inspect
from functools import reduce
from typing import Any

import pytest

DEFAULTS: dict[str, dict[str, Any]] = {
    "engine.decoding decode": {"copies": 1, "pad_id": 0, "token_budget": None, "max_batch": None, "mode": "auto"},
    "engine.decoding greedy": {"pad_id": 0, "starts": None, "token_budget": None, "max_batch": None, "mode": "auto"},
    "engine.forward Scorer": {"mode": "auto", "layer": None},
    "engine.forward token_log_probs": {"mode": "auto"},
    "engine.likelihood score": {"hidden": None, "layer": None, "only": None, "moments": (), "mode": "auto"},
    "engine.packing PackedBatch.build": {"device": None, "share": False, "last": False},
    "engine.sampling Rule": {"temperature": 1.0, "top_p": 1.0, "top_k": None, "confidence": None},
    "engine.sampling sample": {"seed": 0, "first": 0, "rule": None, "questions": None, "pad_id": 0, "mode": "auto"},
    "hook EvaluationSession": {"pad_id": 0, "token_budget": None, "mode": "auto"},
    "hook Hook": {"strict": False},
    "leakage.bounds ed_score": {"rho": 2.0},
    "leakage.bounds expectation_bounds": {"partition": None},
    "leakage.classifier Classifier": {"batch_size": 32, "device": None, "template": "{answer}"},
    "leakage.classifier Classifier.load": {"batch_size": 32, "device": None, "template": "{answer}", "revision": None},
    "leakage.evaluator LeakageEvaluator": {"seed": 0, "name": "leakage"},
    "leakage.sequential SequentialTest": {"reference": 1024, "grid": 1000},
    "leakage.sequential confidence_sequence": {"grid": 1000},
    "leakage.summary Terms": {"alpha": 0.01, "family_wise": False, "rho": 2.0, "leaks_from": 0.5, "limit": 0.1},
    "metrics.answer_metrics truth_ratio": {"convention": "geometric"},
    "metrics.catalogue Group": {"place": 80},
    "metrics.catalogue Metric": {"drawn": False, "needs_oracle": False, "least": 0.0, "most": 1.0, "whole": False},
    "metrics.fluency FluencyEvaluator": {"quantile": 0.95},
    "metrics.membership MembershipEvaluator": {"resamples": 1000, "confidence": 0.95, "seed": 0, "reference": None},
    "metrics.membership auc_difference": {"confidence": 0.95},
    "metrics.membership auc_interval": {"resamples": 1000, "confidence": 0.95, "seed": 0},
    "metrics.muse MuseEvaluator": {"continuation": 128, "answer": 32, "rouge": "paper", "oracle_auc": None},
    "metrics.rouge measurable": {"rule": "paper"},
    "metrics.rouge rouge_1": {"stemmed": True, "any_script": False},
    "metrics.rouge rouge_by": {"stemmed": True},
    "metrics.rouge rouge_l": {"stemmed": True, "any_script": False},
    "metrics.tofu Profile": {
        "questions": None,
        "max_new_tokens": 200,
        "sets": ("forget", "retain", "real_authors", "world_facts"),
    },
    "metrics.tofu TofuEvaluator": {"convention": "geometric", "oracle": None, "rouge": "paper"},
    "metrics.tofu aggregate": {"oracle": None, "convention": "geometric"},
    "metrics.tofu truth_ratios": {"convention": "geometric"},
    "ruler.evaluator RulerEvaluator": {"pooling": "last", "layer": None, "references": None, "retain_sample": None},
    "ruler.evaluator lens_1": {"retain_sample": None},
    "ruler.lenses calibration_gap": {"sample": None, "random_state": 42},
    "ruler.lenses percentile_rank": {"block_size": 1024},
    "ruler.statistics attack_passes": {"tolerance": 0.05},
    "ruler.statistics mixed_model": {"null": 0.0},
    "ruler.statistics noise_band": {"confidence": 0.95},
    "ruler.statistics signed_rank": {"null": 0.0},
    "ruler.statistics threshold_attack": {"splits": 20, "random_state": 42},
    "wikimem.encoder SentenceEncoder": {"first_token": False},
    "wikimem.engine Asking": {"templates": None, "counterfactuals": 100, "context": 0, "variants": 2, "weight": 1.0},
    "wikimem.engine score_facts": {"threshold": 0.75, "embed": None, "known": None, "mode": "auto"},
    "wikimem.facts candidates": {"count": 100},
    "wikimem.facts true_values": {"threshold": 0.75, "embed": None},
    "wikimem.names name_variants": {"count": 2},
    "wikimem.score calibrated_scores": {"generic_nll": None, "weight": 1.0},
}
LEVELS: dict[str, dict[str, Any]] = {
    "engine.decoder_loop": {"SHARING": 4},
    "engine.packing": {"WORTH_SHARING": 0.1},
    "leakage.diversity": {"ORDERS": 4, "EPSILON": 0.1},
    "leakage.sequential": {"TRUNCATION": 0.75},
    "metrics.catalogue": {"ROUNDING": 1e-6},
    "metrics.membership": {"LEAST_RECORDS": 8},
    "metrics.rebound": {"LEAST_FORGOTTEN": 0.01},
    "metrics.rouge": {"LEAST_SHARE": 0.5},
    "metrics.retrained_comparison": {"FACTOR": 2.0, "LEVEL": 0.01, "LEAST_QUESTIONS": 7},
    "ruler.evaluator": {"LEAST_RETAIN": 2},
    "ruler.nearest": {"DIGITS": 11},
    "ruler.rank_significance": {"NULL": 0.5, "LEVEL": 0.05, "LEAST_RECORDS": 6},
    "ruler.statistics": {"TIE": 1e-12, "VANISHING": 1e-6, "CHANCE": 0.5, "TOLERANCE": 0.05},
    "wikimem.canaries": {"MAX_CONTEXT": 4},
    "wikimem.facts": {"COUNTERFACTUALS": 100, "SAME_MEANING": 0.75},
    "wikimem.names": {"VARIANTS": 2},
    "wikimem.properties": {"PARAPHRASES": 10},
    "wikimem.score": {"WEIGHT": 1.0},
}


@pytest.mark.parametrize("what", DEFAULTS)
def test_options_are_what_the_documents_say_unless_told_otherwise(what: str) -> None:
    module, name = what.split()
    found = reduce(getattr, name.split("."), importlib.import_module(f"evaluation.{module}"))
    parameters = inspect.signature(found).parameters  # type: ignore[arg-type]
    assert {key: parameters[key].default for key in DEFAULTS[what]} == DEFAULTS[what]


@pytest.mark.parametrize("module", LEVELS)
def test_levels_are_what_the_documents_say(module: str) -> None:
    found = importlib.import_module(f"evaluation.{module}")
    assert {name: getattr(found, name) for name in LEVELS[module]} == LEVELS[module]
