"""Bounds on scores of one's own: 20 questions, 1000 sampled answers each, and any judge that gives marks in [0, 1]."""

import numpy as np

from oblivionis import leakage, leakage_bounds

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    scores = rng.beta(0.5, 6.0, size=(20, 1000))  # in the place of your judge's marks
    scores[7] = rng.beta(4.0, 2.0, size=1000)

    bounds = leakage_bounds(scores, alpha=0.01, family_wise=True, leaks_from=0.5)
    print("question   mean   at most   an answer leaks with probability at most")
    for i in np.argsort(-bounds.m_bin)[:3]:
        print(f"{i:8}  {bounds.mean[i]:5.3f}     {bounds.m_mu[i]:5.3f}   {bounds.m_bin[i]:5.3f}")

    # Or answer by answer, until a question is decided.
    test = leakage.SequentialTest(threshold=0.2, alpha=0.01)
    decision = next(found for found in map(test.update, scores[:1].T) if found.verdict != "undecided")
    print(f"question 0 leaks {decision.verdict} 0.2 on average: {decision.samples} answers told")
