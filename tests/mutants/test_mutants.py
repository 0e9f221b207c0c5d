"""Faults put into the machine and the runtime, one at a time: the tests are worth their name, they notice each."""

from __future__ import annotations

import pytest

from .hunt import FAILED, PASSED, ROOT, Copy
from .table import MUTANTS, Mutant


def test_the_list_is_alive() -> None:
    """Each fault's text stands exactly once where it says, what it becomes of Python is Python, and the tests it names exist."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    sources: dict[str, str] = {}
    for mutant in MUTANTS:
        for file in (mutant.file, *(test.partition("::")[0] for test in mutant.tests)):
            sources.setdefault(file, (ROOT / file).read_text())
        broken = mutant.applied(sources[mutant.file])
        if mutant.file.endswith(".py"):
            compile(broken, mutant.file, "exec")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in sources[file], f"{mutant.name}: no {test}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy in which the tests pass as it is."""
    copy = Copy(tmp_path_factory.mktemp("mutants"))
    code, found = copy.test(sorted({test for mutant in MUTANTS for test in mutant.tests}))
    assert code == PASSED, found
    return copy


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_is_caught(copy: Copy, mutant: Mutant) -> None:
    """A package with this fault does not pass."""
    with copy.broken(mutant):
        code, found = copy.test(mutant.tests)
    assert code == FAILED, f"pytest ended with {code}: {found}"
