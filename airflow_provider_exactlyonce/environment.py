"""Values of environment variables that may stand in a file, as secrets do."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import RefusedError


def read(variable: str) -> tuple[str, str]:
    """Return the text of a variable, empty when it is not set, and what to call its place in messages.

    :param variable: its value is the text, or ``@`` and the path of a file with it
    :raises RefusedError: when that file can't be read
    """
    text = os.environ.get(variable, "").strip()
    if not text.startswith("@"):
        return text, variable
    try:
        return Path(text[1:]).read_text().strip(), f"the file {text[1:]}, which {variable} names,"
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"{variable} names the file {text[1:]}, which can't be read here: {error}") from None
