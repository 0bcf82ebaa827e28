"""The tutorials, command by command as they stand in the documents; that of the suites is in their own tests."""

import pytest
from support.processes import IN_ONE_PROCESS
from support.tutorials import follow

pytestmark = pytest.mark.integration


def test_from_a_demand_to_a_certificate(tmp_path, monkeypatch):
    """Without Ray: `test_whole_run` says that the simulations compute the same."""
    monkeypatch.setenv("OBLIVIONIS_TEST_PATCH", str(IN_ONE_PROCESS))
    said = follow("start/erasure.md", tmp_path)
    assert "1 of 1 deletion request verified" in " ".join(said[3].split())
    assert "verified" in said[3].split("report:")[-1], "the hospital's own list"
    assert said[4].count("unbroken") == 2
    assert "PASS: wrenn, 2 records of client 1" in said[5]
    assert "may still know wrenn: finetuned model of learned" in said[6]
    assert "1 of 1 deletion request erased exactly" in " ".join(said[7].split())
    *_, replayed = said[8].splitlines()
    assert (replayed.startswith("replayed: "), "differs" in replayed) == (True, False)
