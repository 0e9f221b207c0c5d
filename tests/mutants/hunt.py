"""Breaks the code on purpose, one place at a time, in a copy of the repository, and sees that the tests notice.

From the root: ``python -m tests.mutants.hunt [part of a name ...]``; without a name all are tried. Where one survives it fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1
LONGEST = 90  # seconds for the few tests of one fault
MANY = 20
FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Copy:
    """A copy of the repository, as it is in the working tree, whose tests import the copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder / "turnhold"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Hold a fault for a while."""
        file = self.root / mutant.file
        sound = file.read_text()
        file.write_text(mutant.applied(sound))
        try:
            yield
        finally:
            file.write_text(sound)

    def test(self, tests: Iterable[str]) -> tuple[int, str]:
        """Run tests until the first that fails; return pytest's exit code, and that test or the end of the output.

        What does not end (a fault may let virtual time run for ever) has failed.
        """
        env = {**os.environ, "PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
        env.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", *tests]
        limit = None if len(command) > MANY else LONGEST
        try:
            done = subprocess.run(command, cwd=self.root, env=env, check=False, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return FAILED, f"a test that did not end within {LONGEST} s"
        found = FIRST.search(done.stdout)
        return done.returncode, (done.stdout + done.stderr)[-2000:] if found is None else found[1]


@contextmanager
def copied() -> Iterator[Copy]:
    """Make a copy, and remove it in the end."""
    with tempfile.TemporaryDirectory(prefix="turnhold-mutants-") as folder:
        yield Copy(Path(folder))


def main(names: list[str]) -> int:
    """Try mutants and tell of each."""
    chosen = [each for each in MUTANTS if not names or any(name in each.name for name in names)]
    alive = 0
    with copied() as copy:
        code, found = copy.test(sorted({test for each in chosen for test in each.tests}))
        if code != PASSED:
            print(f"the tests do not pass as it is: {found}")
            return 2
        for mutant in chosen:
            begun = time.monotonic()
            with copy.broken(mutant):
                code, found = copy.test(mutant.tests)
            alive += code != FAILED
            said = {PASSED: "SURVIVED", FAILED: f"caught by {found}"}.get(code, f"no result ({code}): {found}")
            print(f"{mutant.name}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} caught")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
