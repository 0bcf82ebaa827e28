"""The meta-evaluation in seconds: two federations of two clients, a round each, of the model with one layer."""

from support.one_layer import one_layer

from benchmarks.meta import results
from oblivionis.array_files import read_arrays

TINY = [
    f"base.model.source={one_layer()}",
    "seeds=[0, 1]",
    "intervals.resamples=50",
    "base.data={authors: 3, forget_authors: 1, holdout_authors: 1, reference_authors: 1, questions_per_author: 2}",
    "base.federation={clients: 2, fraction_train: 1.0, local_epochs: 1, rounds: {finetune: 1}}",
    "base.evaluation.full.max_new_tokens=6",
    "base.evaluation.leakage={full_samples: 4, max_new_tokens: 6}",
    "base.evaluation.wikimem.full={retain_subjects: 0, counterfactuals: 4, templates: 1}",
    "base.attack.relearn.steps=[1]",
    "base.attack.relearn.records=2",
]


def same_files(folder, other):
    """The same files with the same content; models number for number, for their header's keys have no order."""
    found, expected = ({p.relative_to(f): p for f in [f] for p in f.rglob("*") if p.is_file()} for f in (folder, other))
    assert found.keys() == expected.keys()
    for name, path in found.items():
        if name.suffix == ".safetensors":
            size = read_arrays(path, "model")[0]["vector"].size
            first, second = results.read_model(path, size), results.read_model(expected[name], size)
            assert first is not None and second is not None and (first == second).all(), name
        else:
            assert path.read_bytes() == expected[name].read_bytes(), name
