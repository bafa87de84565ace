from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from airflow_provider_exactlyonce.cli import arguments

FILES = sorted(Path(arguments.__file__).parent.glob("*.py"))


def test_what_several_commands_take_is_declared_once() -> None:
    texts = {file.name: file.read_text() for file in FILES}
    calls = {name: re.findall(r'add_argument\(\s*"([\w-]+)"(.*?)\)\n', text, re.DOTALL) for name, text in texts.items()}
    own = Counter((option, about) for declared in calls.values() for option, about in declared)
    assert len(own) > 30
    assert not [option for option, _ in own if option in arguments.SHARED]
    assert not [option for (option, _), times in own.items() if times > 1]
