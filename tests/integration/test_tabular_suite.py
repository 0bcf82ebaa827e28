"""The tabular suite as a process: interrupted, resumed, and what the paper says of its numbers."""

import signal
import subprocess
import sys
import time

import pandas as pd
import pytest


@pytest.mark.slow
def test_the_real_command_survives_an_interrupt_on_breast_cancer(tmp_path):
    def command(folder, *more):
        suite = ["ruler_tabular", "datasets=[breast_cancer]", "seeds=[0, 1]", "--output", str(tmp_path / folder)]
        return [sys.executable, "-m", "oblivionis.cli.main", "bench", *suite, *more]

    whole = subprocess.run(command("whole"), capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stderr
    for title in ("Calibration gap", "Mean percentile rank", "Output level", "Breast Cancer alone"):
        assert title in whole.stdout
    with subprocess.Popen(command("cut"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        results, end = tmp_path / "cut" / "results.parquet", time.monotonic() + 200
        while not results.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 130 and "--resume" in errors and "Traceback" not in errors
    assert 0 < len(pd.read_parquet(results)) < 6 * 9
    resumed = subprocess.run(command("cut", "--resume"), capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    frames = [pd.read_parquet(tmp_path / name / "results.parquet") for name in ("whole", "cut")]
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    assert len(frames[0]) == 6 * 9
    methods = frames[0][frames[0]["method"].isin(["grad_ascent", "neg_grad", "fine_tune", "scrub"])]
    means = methods.groupby(["fraction", "method"])[["s_gap", "mean_rank"]].mean()
    assert (means["s_gap"] < 0).all() and (means["mean_rank"] > 0.5).all()
