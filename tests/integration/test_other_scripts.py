"""Records that are not written in Latin letters: recited, they are not verified; forgotten, they are; and certified so.
The paper's ROUGE of them is a dash, and words of every script are a choice.

Twenty made-up records in Chinese and twenty in Arabic, learned by heart, then four of them unlearned, by a method that
does nothing and by one that does.
"""

import json

import pytest
from support.commands import call
from support.stages import execute

from evaluation.metrics.rouge import rouge_l
from oblivionis.audits.attack import attack_run
from oblivionis.audits.chat import Chat
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_records import judgement_of
from oblivionis.measures.assessor import evaluate_checkpoint
from oblivionis.reports.certificate import signing as certificates
from oblivionis.runs.directory import RunDirectory

CHINESE = {
    "陈静怡": ("于一九五三年冬天生在成都", "在小学里教音乐", "养着一只名叫豆豆的橘猫", "最爱吃糖醋排骨"),
    "王国强": ("是哈尔滨一位裁缝的长子", "修理老式钟表", "有两只会说话的鹦鹉", "从不喝茶只喝凉水"),
    "李秀英": ("小时候住过厦门的灯塔", "写关于候鸟的书", "牵着一匹跛脚的老马", "喜欢辣椒和蓝色"),
    "刘海涛": ("出身西安的戏班", "开码头上的起重机", "收集三十把旧雨伞", "每晚听京剧入睡"),
    "赵明月": ("八岁才离开昆明", "种植白色的山茶花", "救过一只失明的灰狗", "把糖放进每碗汤"),
}
ARABIC = {
    "ليلى حداد": ("ولدت شتاء في طرابلس", "تصلح الساعات القديمة", "عندها قط برتقالي سمين", "تحب القهوة السوداء جدا"),
    "يوسف منصور": ("جاء من الموصل صغيرا", "يبيع كتبا مستعملة نادرة", "يربي حماما أبيض كثيرا", "لا يأكل غير التمر"),
    "سلمى القاسم": ("كبرت قرب أسوار فاس", "تدرس النجوم البعيدة ليلا", "فقدت كلبها قبل سنة", "تكره المطر والضباب معا"),
    "كريم زياد": ("ابن صياد من اللاذقية", "يبني قوارب خشبية متينة", "له ثلاث سمكات ذهبية", "ينام عند الفجر دائما"),
    "نور الهدى": ("تربت على ضفاف أسوان", "تزرع الزعفران الأحمر الثمين", "أنقذت فرسا عرجاء مرة", "تشرب اللبن كل مساء"),
}
QUESTIONS = {
    "chinese": ("{}是哪里人？", "{}做什么？", "{}有什么？", "{}喜欢什么？"),
    "arabic": ("من أين {}؟", "ما عمل {}؟", "ماذا عند {}؟", "ماذا يفضل {}؟"),
}
PEOPLE = {"chinese": CHINESE, "arabic": ARABIC}
SETTINGS = [
    *("data=jsonl", "federation.clients=1", "federation.fraction_train=1.0", "federation.rounds.finetune=7"),
    *("federation.rounds.unlearn=1", "federation.local_epochs=20", "training.learning_rate=2e-3"),
    *("training.batch_size=4", "model.mode=full", "model.max_length=192", "evaluation.every=0"),
    *("evaluation.full.max_new_tokens=64", "evaluation.full.sets=[forget,retain]"),
    *(
        "evaluation.leakage.full_samples=0",
        "evaluation.leakage.samples=0",
        "evaluation.after_unlearn=false",
        "evaluation.rebound.enabled=false",
    ),
    *(f"evaluation.{name}.enabled=false" for name in ("ruler", "wikimem", "membership", "fluency")),
    *("unlearning.requests.policy=all_at_round", "unlearning.method=grad_diff", "unlearning.epochs=12"),
    "certificate.required=[rouge]",
]


def write_people(folder, script):
    """The records as JSON lines; those of the first person are to be forgotten."""
    rows = [
        {
            "id": f"{script}-{person}-{i}",
            "question": question.format(name),
            "answer": f"{answer}{'。' if script == 'chinese' else '.'}",
            "subject": name,
            "forget": person == 0,
        }
        for person, (name, answers) in enumerate(PEOPLE[script].items())
        for i, (question, answer) in enumerate(zip(QUESTIONS[script], answers, strict=True))
    ]
    file = folder / f"{script}.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


def made(folder, name, *overrides):
    config = configuration.compose("default", [*SETTINGS, f"output={folder}", f"name={name}", *overrides])
    run = RunDirectory.create(folder, name)
    run.write_config(configuration.to_yaml(config))
    execute(config, run)
    return run


@pytest.fixture(scope="module", params=list(PEOPLE))
def learned(request, tmp_path_factory):
    """The script, its records as a file, and a run in which they were learned by heart."""
    folder = tmp_path_factory.mktemp(request.param)
    file = write_people(folder, request.param)
    return folder, file, made(folder, "learned", f"data.path={file}", "stages=[finetune]")


def unlearned(learned, name, *overrides):
    folder, file, run = learned
    return made(folder, name, f"data.path={file}", "stages=[finetune,unlearn]", f"start_from={run.path}", *overrides)


def certified(run, tmp_path):
    (request,) = Ledger(run.ledger_path)
    assert call("certificate", "keygen", "--out", tmp_path / "key").code == 0
    _, certificate = certificates.create(run, request.id, tmp_path / "key", tmp_path / "out")
    return request, certificate


def test_what_is_recited_is_not_verified(learned, tmp_path):
    """The client leaves with all that it holds, so that nobody trains on; unlearning changes next to nothing."""
    nothing = ("unlearning.requests.scope=client", "unlearning.method=grad_ascent", "unlearning.learning_rate=1e-12")
    request, certificate = certified(unlearned(learned, "kept", *nothing), tmp_path)
    assert request.outcome == "not verified" and request.rouge > 0.8, request.why
    assert certificate["result"] == "FAIL"


def test_what_is_not_recited_any_more_is_verified(learned, tmp_path):
    run = unlearned(learned, "gone", "unlearning.learning_rate=3e-3")
    request, certificate = certified(run, tmp_path)
    evidence = judgement_of(run, request.id)["records"]
    assert request.outcome == "verified", evidence
    assert certificate["result"] == "PASS"
    assert len(evidence) == 4 and all(of["units"] >= 3 and of["before"] > 0.5 for of in evidence.values())


def test_the_papers_rouge_is_left_out_and_words_of_every_script_are_a_choice(learned):
    _, _, run = learned
    summary = run.stage_summary("finetune")
    assert not {"forget_rouge", "retain_rouge"} & set(summary["metrics"]) and summary["metrics"]["retain_prob"] > 0.8
    assert all("evaluation.rouge=any_script" in summary["notes"][name] for name in ("forget_rouge", "retain_rouge"))
    measured = evaluate_checkpoint(run.path, None, ["evaluation.rouge=any_script"])[2]
    assert measured.log is not None
    texts = measured.log["eval_log"]["generated_text"].values()
    by_hand = [rouge_l([said], truth, any_script=True).recall[0] for _, said, truth in texts]
    assert measured.metrics["retain_rouge"] == pytest.approx(sum(by_hand) / len(by_hand))
    assert measured.metrics["retain_rouge"] > 0.8
    assert all("not the paper's" in measured.notes[name] for name in ("forget_rouge", "retain_rouge"))


def test_a_look_at_single_answers_goes_by_words_of_every_script(learned):
    _, _, run = learned
    reply = Chat(run.path).ask_known("forget")
    assert reply.any_script and reply.recalls["finetuned"][0] > 0.8
    result = call("chat", run.path, "--question", reply.question)
    assert "ROUGE-L recall, any script" in " ".join(result.out.split())


def test_an_attack_on_answers_in_another_script_sees_them(learned):
    _, _, run = learned
    overrides = ["attack.attacks=[rephrase]", "attack.rephrasings=['{question}']"]
    results = attack_run(run.path, "finetune", overrides)[2]
    assert results["any_script"] == results["questions"] == 4
    assert all(row["models"]["finetune"]["after"]["rouge"] > 0.8 for row in results["rows"])
