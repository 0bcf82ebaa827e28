"""The words of the reports and what they mean: shown on hover and at the foot of every page."""

from __future__ import annotations

from oblivionis.erasure.verification_rules import ERASED, MEANING
from oblivionis.measures import registry

GLOSSARY = {
    **{metric.title: metric.meaning for metric in registry.catalogue().values()},
    "Over-unlearned (↓)": "The unlearned model's value on the forget questions is less than half of the retrained "
    "model's, and the paired questions say that this is no chance (one-sided Wilcoxon signed-rank test, p at most "
    "0.01). For the truth ratio the value is the median of 1/R, right over wrong: the mean of min(R, 1/R) is small for "
    "a model that knows the answer as for one that avoids it. Far above (↑), more than twice: still known.",
    "FedTU": "Federated targeted unlearning: a client asks to forget records, and only that client is addressed, "
    "before the round's fine-tuning (FedFT) by a sample of the clients.",
    "Stage": "finetune: training on all records; retrain: the same from the same seed without the records to forget; "
    "unlearn: from the finetuned model on, clients ask to forget and training goes on; local: each client alone.",
    "Base model": "As it was before anybody trained it: what it knows without the clients' records.",
    "Finetuned model": "Trained on all records, those to forget among them: where unlearning starts from.",
    "Unlearned model": "The finetuned model after deletion requests were served while training went on.",
    "Retrained model": "The oracle: trained like the finetuned model, but without the records to forget. It is what a "
    "model that has forgotten them perfectly should look like.",
    "Round": "One exchange of models: clients that ask to forget unlearn first (FedTU), then a sample of the clients "
    "fine-tunes (FedFT), then the server averages and measures.",
    "Failed replies": "Answers that did not come in time, reported an error or did not fit; the round went on without "
    "these clients.",
    "Cut replies": "Answers of which less counts than was sent: an update far longer than others of its round, or a "
    "weight above the client's records or share.",
    "Asked in round": "First round of the stage unlearn in which the request may be served.",
    "Served in round": "Round of the stage unlearn in which the client unlearned and its model was averaged in.",
    "Failed attempts": "FedTU exchanges with this client that failed before the request was served.",
    "Request state": "pending: not served yet; served: the client has unlearned; rejected: refused; covered: all its "
    "records were asked for before; at the stage's end one of "
    + "; ".join(f"{outcome}: {meaning}" for outcome, meaning in MEANING.items() if outcome != ERASED)
    + ".",
    "Verification": "ROUGE-L recall, in any script and without the words of the question, of the final model's greedy "
    "answer to each record of the request: above `unlearning.requests.verify_max_rouge` it is recited. Verified takes "
    "that each record was recited before, or far likelier than in a model trained without it, that none is any more, "
    "and a model that is still good for something.",
    "Forget loss": "Mean negative log-likelihood per answer token (nats) on the request's records, measured by the "
    "client before and after its unlearning, before the server averages.",
    "Standard deviation (±)": "Sample standard deviation (n − 1) over the seeds; left out where there is one "
    "seed only.",
    "Cell": "One combination of the suite's axes, such as strategy, unlearning method and seed: a run of its own.",
    "Seconds saved": "Seconds that the stages would have taken if every cell had run its own, less those of the stages "
    "that were run.",
}
