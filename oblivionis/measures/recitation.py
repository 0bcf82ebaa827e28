"""How well a model recites records, by greedy decoding or in sampled answers.

What the question of a record says already is left out of the answer: a model that repeats the question has recited
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluation.engine.sampling import sample
from evaluation.hook import EvaluationSession
from evaluation.metrics.rouge import new_words, rouge_l
from oblivionis.config.schema import Config
from oblivionis.data.records import Record
from oblivionis.measures.muse.prompts import Generate, recited
from oblivionis.measures.questions import encode_questions
from oblivionis.models.assembly import Assembled


def new_session(assembled: Assembled, config: Config) -> EvaluationSession:
    """A session of the model as it is now."""
    return EvaluationSession(
        assembled.model,
        stop_ids=assembled.stop_ids,
        pad_id=assembled.tokenizer.pad_token_id or 0,
        token_budget=config.evaluation.token_budget,
    )


def greedy_recall(
    session: EvaluationSession, records: Sequence[Record], assembled: Assembled, config: Config
) -> list[float]:
    """`recall` of the greedy answer to each record, in one pass.

    They are prompted as the forget questions are in the profile `full`, with at most as many new tokens; of a piece of
    text the first half is given, and all words of the rest are expected (`measures.muse.prompts.recited`).
    """
    return _recall_of(session.greedy, records, assembled, config)


def sampled_recall(
    records: Sequence[Record], assembled: Assembled, config: Config, *, samples: int, seed: int
) -> list[float]:
    """The largest `recall` among `samples` answers to each record that the model as it is now samples at temperature 1.

    Prompts and lengths are those of `greedy_recall`.
    """

    def generate(prompts: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
        produced = sample(
            assembled.model,
            prompts[::samples],
            samples,
            max_new_tokens=limit,
            stop_ids=assembled.stop_ids,
            seed=seed,
            pad_id=assembled.tokenizer.pad_token_id or 0,
            token_budget=config.evaluation.token_budget,
        )
        return [answer for answers in produced for answer in answers]

    repeated = [record for record in records for _ in range(samples)]
    recalls = _recall_of(generate, repeated, assembled, config)
    return [max(recalls[start : start + samples]) for start in range(0, len(recalls), samples)]


def _recall_of(generate: Generate, records: Sequence[Record], assembled: Assembled, config: Config) -> list[float]:
    """`recall` of a generated answer to each record."""
    if records and records[0].tokens:
        return recited(records, assembled, generate, config.evaluation.muse.continuation)
    questions = encode_questions([bare(record) for record in records], assembled, config)
    produced = generate([q.prompt for q in questions], config.evaluation.full.max_new_tokens)
    texts = [assembled.tokenizer.decode(list(tokens), skip_special_tokens=True) for tokens in produced]
    return recall(texts, records)


def recall(texts: Sequence[str], records: Sequence[Record]) -> list[float]:
    """ROUGE-L recall, in any script, of texts for the answers of records, without their questions' words."""
    true = [" ".join(new_words(record.answer, record.question)) for record in records]
    return rouge_l(texts, true, any_script=True).recall.tolist() if texts else []


def bare(record: Record) -> Record:
    """A record with its question and its answer alone."""
    return replace(record, paraphrased_answer=None, perturbed_answers=())
