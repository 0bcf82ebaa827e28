"""The TOFU metrics of any Hugging Face model folder: python tofu_metrics.py MODEL QUESTIONS [RETRAINED]

QUESTIONS is a folder with TOFU's files, or with your own records in their shape. Beside a RETRAINED model there is a
forget quality.
"""

import json
import sys
from pathlib import Path

from oblivionis import evaluate_model, load_model

FILES = {
    "forget": "forget01_perturbed.json",
    "retain": "retain_perturbed.json",
    "real_authors": "real_authors_perturbed.json",
    "world_facts": "world_facts_perturbed.json",
}

if __name__ == "__main__":
    model, folder, *retrained = sys.argv[1:]
    questions = {
        name: [json.loads(line) for line in (Path(folder) / file).read_text(encoding="utf-8").splitlines()]
        for name, file in FILES.items()
    }
    oracle = evaluate_model(retrained[0], questions) if retrained else None
    found = evaluate_model(load_model(model, dtype="float32"), questions, oracle=oracle)
    for name, value in found.metrics.items():
        print(f"{name:35}{value:6.3f}")
    prompt, generated, answer = found.log["eval_log_forget"]["generated_text"]["0"]
    print(f"{prompt}\n  says    {generated}\n  answer  {answer}")
