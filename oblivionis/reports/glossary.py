"""The words of the reports and what they mean: shown on hover and at the foot of every page."""

from __future__ import annotations

from oblivionis.reports import membership as membership_report

GLOSSARY = {
    "Prob": "Length-normalised probability of the true answer, exp(−mean NLL per answer token), end token included; "
    "on real authors and world facts its share among the true and the perturbed answers. 0 to 1.",
    "ROUGE-L recall": "Longest common subsequence of the greedy and the true answer over the length of the true one, "
    "in stemmed words. 0 to 1.",
    "Truth ratio": "Mean of max(0, 1 − R), R = wrong/right: how much likelier the right answer is than the perturbed "
    "ones. 0 to 1; higher: the model knows more.",
    "Forget truth ratio": "Mean of min(R, 1/R) on the forget questions, R = wrong/right. 1: right and wrong answers "
    "are equally likely.",
    "Over-unlearned (↓)": "The unlearned model's value on the forget questions is less than half of the retrained "
    "model's, and the paired questions say that this is no chance (one-sided Wilcoxon signed-rank test, p at most "
    "0.01). For the truth ratio the value is the median of 1/R, right over wrong: the mean of min(R, 1/R) is small for "
    "a model that knows the answer as for one that avoids it. Far above (↑), more than twice: still known.",
    "Model utility": "Harmonic mean of Prob, ROUGE-L recall and truth ratio on retain, real authors and world facts; 0 "
    "as soon as one of the nine is 0.",
    "Forget quality (KS p)": "p-value of a two-sample Kolmogorov–Smirnov test between the truth ratios of this model "
    "and of the retrained one on the forget questions. Near 0: the two can be told apart. The retrained model against "
    "itself has 1.",
    "Mean leakage": "Mean ROUGE-L recall (or `evaluation.leakage.function`) of randomly sampled answers to forget "
    "questions. 0 to 1.",
    "ED score": "Mean leakage plus rho times its standard deviation over the samples of a question, averaged over "
    "questions.",
    "Bound on mean leakage (M_μ)": "Upper bound on the expected leakage of a question that holds with probability 1 − "
    "alpha, averaged over questions. Fewer samples make it looser.",
    "Questions that may leak (M_bin)": "Share of forget questions for which the probability of a leaking answer "
    "(leakage of at least `leaks_from`) is not certified to be below `limit`.",
    "Mean rank (null 0.5)": "RULER without an oracle: how near a forget record lies to its nearest retained record, as "
    "a percentile of how near retained records lie to their nearest other one, averaged over the forget records. 0.5: "
    "they blend in; above: residual memorisation; below: pushed too far. Compare with the retrained model: some data "
    "are not at 0.5 by themselves.",
    "S_gap (null 0)": "RULER beside the retrained model: mean cosine of the forget records' representations in the two "
    "models less the median cosine of the retained ones. Negative: residual memorisation; positive: over-correction.",
    "S_oracle": "Mean cosine of the forget records' representations in this model and in the retrained one. Near 1: "
    "they lie where the retrained model has them.",
    "S_shift": "S_oracle less that of the finetuned model. Positive: unlearning moved the forget records towards the "
    "retrained model; in the column of the retrained model stands what there was to gain.",
    "Facts that rank first (strict)": "WikiMem: in which share of the phrasings the true value of a fact scores above "
    "every value of other people, averaged over facts. The score takes off how likely the sentence is with look-alike "
    "names. 0 to 1.",
    "Facts that rank first (any phrasing)": "WikiMem: share of facts whose true value ranks first in at least one "
    "phrasing (lenient rate). More phrasings make it higher by chance.",
    "Memorisation strength z*": "WikiMem: by how many standard deviations the lead of the true value exceeds the mean "
    "lead of a candidate, averaged over the phrasings in which it ranks first.",
    "Values that score higher (null 0.5)": "Not of WikiMem: share of the values of other people that score at least as "
    "high as the true one, averaged over phrasings and facts. 0: always first; 0.5: chance; above: avoided.",
    "People with nothing memorised": "WikiMem: share of people none of whose facts ranks first in any phrasing.",
    **membership_report.GLOSSARY,
    "FedTU": "Federated targeted unlearning: a client asks to forget records, and only that client is addressed, "
    "before the round's fine-tuning (FedFT) by a sample of the clients.",
    "Stage": "finetune: training on all records; retrain: the same from the same seed without the records to forget; "
    "unlearn: from the finetuned model on, clients ask to forget and training goes on; local: each client alone.",
    "Finetuned model": "Trained on all records, those to forget among them: where unlearning starts from.",
    "Unlearned model": "The finetuned model after deletion requests were served while training went on.",
    "Retrained model": "The oracle: trained like the finetuned model, but without the records to forget. It is what a "
    "model that has forgotten them perfectly should look like.",
    "Round": "One exchange of models: clients that ask to forget unlearn first (FedTU), then a sample of the clients "
    "fine-tunes (FedFT), then the server averages and measures.",
    "Failed replies": "Answers that did not come in time, reported an error or did not fit; the round went on without "
    "these clients.",
    "Seconds": "Wall-clock seconds of the stage with its evaluations, on the machine named in the report; since the "
    "last resume, where the run was interrupted.",
    "Asked in round": "First round of the stage unlearn in which the request may be served.",
    "Served in round": "Round of the stage unlearn in which the client unlearned and its model was averaged in.",
    "Failed attempts": "FedTU exchanges with this client that failed before the request was served.",
    "Request state": "pending: not served yet; served: the client has unlearned; verified: served, and the final model "
    "recites its records no more than the limit; rejected: refused; covered: all its records were asked for before.",
    "Verification": "Mean ROUGE-L recall of the final model's greedy answers on the records of the request, which must "
    "be at most `unlearning.requests.verify_max_rouge`.",
    "Forget loss": "Mean negative log-likelihood per answer token (nats) on the request's records, measured by the "
    "client before and after its unlearning, before the server averages.",
    "Standard deviation (±)": "Sample standard deviation (n − 1) over the seeds; left out where there is one "
    "seed only.",
    "Cell": "One combination of the suite's axes, such as strategy, unlearning method and seed: a run of its own.",
    "Seconds saved": "Seconds that the stages would have taken if every cell had run its own, less those of the stages "
    "that were run.",
}
