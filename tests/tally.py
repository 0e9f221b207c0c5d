"""The figures of the long search, printed at its end so that docs/verification.md can have them; also of xdist's workers."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import core

Tally = Counter[str]
FIGURES = pytest.StashKey[dict[str, Tally]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the long search one seed, which is printed; ``--hypothesis-seed`` repeats it."""
    config.stash[FIGURES] = {}
    if config.getoption("markexpr") == "deep" and core.global_force_seed is None:
        given: Any = getattr(config, "workerinput", {}).get("seed")
        core.global_force_seed = random.SystemRandom().getrandbits(32) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let a worker use the same seed."""
    node.workerinput["seed"] = core.global_force_seed


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Give a counter whose figures are printed under the name of the test."""
    counted = request.config.stash[FIGURES][request.node.name] = Counter()
    return counted


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's figures."""
    output: Any = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["figures"] = {name: dict(counted) for name, counted in session.config.stash[FIGURES].items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's figures."""
    node.config.stash[FIGURES].update(getattr(node, "workeroutput", {}).get("figures", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print all of them."""
    figures = config.stash[FIGURES]
    if figures:
        terminalreporter.section(f"figures of the long search, seed {core.global_force_seed}")
        for name, counted in sorted(figures.items()):
            terminalreporter.write_line(f"{name}: {', '.join(f'{count:,} {what}' for what, count in counted.items())}")
        terminalreporter.write_line(f"together: {', '.join(f'{n:,} {what}' for what, n in together(figures).items())}")


def together(figures: dict[str, Tally]) -> Tally:
    total: Tally = Counter()
    for counted in figures.values():
        total.update(counted)
    return total
