"""The example of three nodes does what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_nodes" / "run.py"
LINE = re.compile(r" *\d+\.\d\d  ([ABC ])  (\S+)(?: \S+)? +(.*)")

pytestmark = [pytest.mark.process, pytest.mark.redis]


@pytest.mark.parametrize("own", [True, False], ids=["own server", "a url"])
def test_a_turn_that_loses_its_owner_goes_on_elsewhere(own: bool, request: pytest.FixtureRequest) -> None:
    """Started on A, answered on B, B is killed, C goes on under the same key, and the approved refund has run once."""
    url = () if own else (request.getfixturevalue("redis_url"),)
    ended = subprocess.run([sys.executable, str(EXAMPLE), *url], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr) == (0, "")

    story = [LINE.fullmatch(line) for line in ended.stdout.splitlines()]
    assert all(story), ended.stdout
    told = [match.groups() for match in story if match]
    starts = [(node, text) for node, what, text in told if what == "tool"]
    assert len(starts) == 3, ended.stdout
    first, second, last = (node for node, _ in starts)
    assert first == second != last  # B and then C, unless B stood still for its lease of 3 s when it had answered
    assert starts[0][1] == "refund_order starts, attempt 1"
    assert [text.partition(", key ")[0] for _, text in starts[1:]] == [f"send_mail starts, attempt {number}" for number in (1, 2)]
    assert starts[1][1].split(" ")[-1] == starts[2][1].split(" ")[-1]
    assert ("B", "answers", "APPROVED by ann") in told
    assert [what for _, what, _ in told].count("kill") == 1
    assert sum(text.startswith("TOOL_PROGRESS") for node, what, text in told if (node, what) == ("A", "reads")) >= 2
    assert ("A", "sees", "COMPLETED: Refunded, and the customer knows.") in told
