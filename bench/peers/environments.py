"""An environment for each peer, made when it is first needed, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = "TURNHOLD_BENCH_CACHE"  # names another folder for the environments
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


class Unavailable(Exception):
    """This cannot be installed, or does not run, on this machine; the text says why."""


class Failed(Unavailable):
    """It runs here, and did not do what it should."""


def cache() -> Path:
    """Return the folder of all environments, outside the repository."""
    if named := os.environ.get(CACHE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnhold-bench"


def requirements(peer: str) -> Path:
    return REQUIREMENTS / f"{peer}.txt"


def folder_of(peer: str, pinned: str) -> Path:
    """Return the folder for these versions on this Python; others get another one."""
    key = hashlib.sha256(f"{sys.version}\n{pinned}".encode()).hexdigest()[:12]
    return cache() / f"{peer}-{key}"


def python_for(peer: str) -> Path:
    """Return the Python of a peer's environment; turnhold's is the one that runs this."""
    if peer == "turnhold":
        return Path(sys.executable)
    listed = requirements(peer)
    folder = folder_of(peer, listed.read_text())
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"{peer}: installing into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        command([sys.executable, "-m", "venv", str(folder)])
        command([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(listed)])
        (folder / "complete").touch()
    return python


def npm(package: str, version: str, program: str) -> Path:
    """Return a program of an npm package."""
    folder = folder_of(package.rpartition("/")[2], version)
    if not (folder / "complete").exists():
        if shutil.which("npm") is None:
            raise Unavailable("npm is not on PATH")
        print(f"{package}: installing into {folder}", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        command(["npm", "install", "--silent", "--ignore-scripts", "--prefix", str(folder), f"{package}@{version}"])
        (folder / "complete").touch()
    return folder / "node_modules" / ".bin" / program


def command(words: list[str]) -> None:
    """Run a command, or tell the end of what it said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=900, env=bare_environment())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{words[0]}: {error}") from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip() and not line.startswith("WARNING")]
        raise Unavailable(f"{Path(words[0]).name} failed: {' / '.join(said[-3:])}")


def bare_environment() -> dict[str, str]:
    """Return this process's environment without what would lead another Python to this one's packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
