"""Slurm's commands in a folder for the PATH: `sbatch` does an array at once, task after task; `squeue` tells of none.

A task runs when all tasks that it comes after (`afterok`) ended with 0; `jobs.jsonl` says what was asked and how each
task ended. With FAKE_SLURM_ONLY_TELL no task is run, and each is taken for done; FAKE_SLURM_QUEUED is what `squeue`
says.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path


def install(folder):
    """The folder of the commands, made in `folder`."""
    place = folder / "slurm-commands"
    place.mkdir()
    for name in ("sbatch", "squeue"):
        command = place / name
        command.write_text(f'#!/bin/bash\nexec {sys.executable} -S {__file__} {name} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return place


def jobs(place):
    """What was submitted to the commands in `place`."""
    file = place / "jobs.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def sbatch(place, arguments):
    """Do an array; the number of the job."""
    *options, script = arguments
    given = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    ended = {f"{job['id']}_{task}": code for job in jobs(place) for task, code in job["ended"].items()}
    after = given["dependency"].split(":")[1:] if "dependency" in given else []
    number = len(jobs(place)) + 1
    codes = {}
    for task in given["array"].split(","):
        if any(ended[one] != 0 for one in after):
            codes[task] = None
        elif "FAKE_SLURM_ONLY_TELL" in os.environ:
            codes[task] = 0
        else:
            variables = {**os.environ, "SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": task}
            with (place / f"{number}_{task}.out").open("wb") as out:
                done = subprocess.run(["bash", script], env=variables, stdout=out, stderr=out, cwd="/")
            codes[task] = done.returncode
    with (place / "jobs.jsonl").open("a") as file:
        file.write(json.dumps({"id": number, "script": script, "options": given, "ended": codes}) + "\n")
    return number


if __name__ == "__main__":
    place = Path(os.environ["FAKE_SLURM"])
    if sys.argv[1] == "sbatch":
        print(f"{sbatch(place, sys.argv[2:])};cluster")
    else:
        print(os.environ.get("FAKE_SLURM_QUEUED", ""), end="")
        sys.exit(int(os.environ.get("FAKE_SLURM_DOWN", "0")))
