"""The tutorial, executed: its files are written, its commands run in their order, and what they print is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port

PAGE = (Path(__file__).parents[3] / "docs/tutorial.md").read_text()
BLOCK = re.compile(r"(?:<!-- (?:file: (\S+)|(not executed)) -->\n)?```(?:python|console)\n(.*?)```", re.DOTALL)
PORT = "9092"


@dataclass(frozen=True)
class Shell:
    """A shell in a directory; what it exports stays."""

    folder: Path
    port: int
    exports: list[str]

    def run(self, command: str) -> str:
        command = command.replace(PORT, str(self.port))
        if command.startswith("export "):
            self.exports.append(command)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "EXACTLYONCE"))},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self.exports, command])],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
        )
        print(f"$ {command}\n{done.stdout}")
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
        return done.stdout.replace(str(self.port), PORT)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, free_port(), [])
    yield shell
    shell.run("exactlyonce broker stop")


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block and what it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def is_like(printed: str, shown: str) -> bool:
    """Whether a command has printed what the page shows, where ``…`` stands for anything and spaces do not count."""
    parts = (re.escape(" ".join(part.split())) for part in shown.split("…"))
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(printed.split()), re.DOTALL) is not None


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tutorial_prints_what_it_shows(shell: Shell) -> None:
    executed, unlike = 0, []
    for file, left_out, block in BLOCK.findall(PAGE):
        if file:
            path = shell.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
        elif not left_out:
            for command, shown in commands(block):
                printed = shell.run(command)
                executed += 1
                if not is_like(printed, shown):
                    unlike.append(f"{command}\nprints\n{printed[-3000:]}\nand not\n{shown}")
    assert not unlike, "\n\n".join(unlike)
    assert executed > 15
