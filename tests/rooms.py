"""The rooms of the package and what each may import; ``python -m tests.rooms`` draws them for docs/architecture.md."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import airflow_provider_exactlyonce

ROOT: Final = Path(airflow_provider_exactlyonce.__file__).parent
PAGE: Final = Path(__file__).parents[1] / "docs" / "architecture.md"
PICTURE: Final = PAGE.with_name("rooms.svg")
#: Of the picture, in pixels: a square of its grid, and the space for the names.
SQUARE, MARGIN = 15, 190

#: What each room may import of the others, from the lowest to the highest; everybody may import the plain modules at
#: the top of the package (exceptions and so on). A line that is longer than it was says that a room knows more.
ROOMS: dict[str, set[str]] = {
    "jars": set(),
    "devkit": {"jars"},
    "kafka": set(),
    "state": set(),
    "policies": set(),
    "storage": set(),
    "control": {"policies", "storage"},
    "tables": {"kafka"},
    "ledger": {"kafka", "tables"},
    "links": {"control"},
    "audit": {"kafka", "ledger", "tables"},
    "transactions": {"kafka", "control", "ledger"},
    "checkpoint": {"kafka", "storage", "control", "ledger", "tables", "streaming.file_systems"},
    "backfill": {"kafka", "storage", "control", "ledger", "tables", "checkpoint"},
    "streaming.settings": {"kafka"},
    "streaming.file_systems": {"jars", "storage", "streaming.settings"},
    "streaming.sequencer": {"kafka", "streaming.settings"},
    "streaming.sinks": {"storage", "ledger"},
    "streaming.spark": {"kafka", "storage", "control", "checkpoint", "streaming.settings"},
    "streaming.registry": {"state", "streaming.settings", "streaming.spark"},
    "streaming.sinks.kafka": {"kafka", "streaming.registry"},
    "streaming.sinks.lakehouse": {"tables", "streaming.settings", "streaming.sinks", "streaming.spark"},
    "streaming.sinks.delta": {"tables", "streaming.sinks", "streaming.sinks.lakehouse"},
    "streaming.sinks.iceberg": {"tables", "streaming.sinks", "streaming.sinks.lakehouse"},
    "streaming.sinks.postgres": {"streaming.settings", "streaming.sinks", "streaming.spark"},
    "streaming.sinks.upsert": {"streaming.sinks", "streaming.spark"},
    "streaming.sinks.write_ahead_log": {"streaming.sinks"},
    "streaming.sinks.files": {
        *("streaming.sinks", "streaming.sinks.lakehouse", "streaming.sinks.delta", "streaming.sinks.write_ahead_log"),
    },
    "streaming.analysis": {
        *("ledger", "tables", "checkpoint", "streaming.settings", "streaming.registry", "streaming.sinks.kafka"),
        "streaming.spark",
    },
    "streaming.keyed": {"state", "streaming.spark"},
    "streaming.job": {
        *("kafka", "state", "ledger", "tables", "checkpoint"),
        *("streaming.settings", "streaming.sinks", "streaming.sinks.kafka", "streaming.spark", "streaming.analysis"),
        "streaming.registry",
    },
    "streaming.commit": {
        *("storage", "kafka", "control", "ledger", "checkpoint", "backfill", "streaming.settings"),
        "streaming.sequencer",
        *("streaming.sinks", "streaming.sinks.kafka", "streaming.spark", "streaming.analysis"),
    },
    "streaming.replay": {
        *("storage", "kafka", "control", "ledger", "checkpoint", "backfill"),
        *("streaming.sinks", "streaming.spark", "streaming.commit"),
    },
    "streaming.driver": {
        *("jars", "kafka", "policies", "control", "ledger", "tables", "checkpoint", "backfill"),
        *(
            "streaming.settings",
            "streaming.sequencer",
            "streaming.sinks",
            "streaming.sinks.kafka",
            "streaming.spark",
            "streaming.analysis",
        ),
        *("storage", "streaming.file_systems", "streaming.job", "streaming.commit", "streaming.replay"),
    },
    "streaming.declaration": {
        *("ledger", "tables", "streaming.sinks", "streaming.sinks.kafka", "streaming.analysis"),
        *("streaming.job", "streaming.driver"),
    },
    "streaming": {
        *("ledger", "checkpoint", "streaming.job", "streaming.keyed", "streaming.declaration", "streaming.sinks"),
        *(f"streaming.sinks.{name}" for name in ("delta", "files", "iceberg", "kafka")),
        *(f"streaming.sinks.{name}" for name in ("postgres", "upsert", "write_ahead_log")),
        "streaming.registry",
    },
    "testing": {
        *("kafka", "control", "ledger", "checkpoint", "streaming.file_systems"),
        *(
            "streaming.sequencer",
            "streaming.sinks",
            "streaming.sinks.kafka",
            "streaming.spark",
            "streaming.analysis",
            "streaming.job",
            "streaming.commit",
        ),
    },
    "doctor": {"kafka", "storage", "control", "ledger", "audit", "transactions", "checkpoint"},
    "upgrade": {
        *("storage", "kafka", "control", "ledger", "tables", "checkpoint", "streaming.file_systems"),
        *("streaming.sinks.kafka", "streaming.spark", "streaming.job", "streaming.commit", "streaming.replay"),
    },
    "hooks": {
        *("jars", "storage", "control", "ledger", "tables", "checkpoint"),
        *("streaming.settings", "streaming.file_systems"),
    },
    "triggers": {"policies", "control", "ledger", "transactions", "hooks"},
    "sensors": {"ledger", "transactions", "hooks", "triggers"},
    "assets": {"ledger", "triggers"},
    "operators": {
        *("policies", "control", "ledger", "links", "audit", "checkpoint", "backfill", "upgrade", "hooks", "triggers"),
    },
    "cli": {
        *("devkit", "jars", "kafka", "policies", "control", "ledger"),
        *("audit", "transactions", "checkpoint", "backfill"),
        *("streaming.settings", "streaming.sinks", "streaming.spark", "streaming.analysis", "streaming.job"),
        *("streaming.sinks.files", "streaming.replay", "streaming.driver", "doctor", "upgrade"),
        *("storage", "streaming.file_systems"),
    },
}
#: Modules at the top that everybody may import; they import each other only.
PLAIN = {
    "_moved",
    "codec",
    "environment",
    "exceptions",
    "failpoints",
    "files",
    "moments",
    "polling",
    "process_identity",
    "text_tables",
}
#: Modules at the top that nobody imports.
ENTRIES = {"get_provider_info"}


def floors() -> list[list[str]]:
    """Return the rooms by height, the lowest first: each imports only from floors below its own."""
    sorter, levels = TopologicalSorter(ROOMS), []
    sorter.prepare()
    while sorter.is_active():
        levels.append(sorted(sorter.get_ready()))
        sorter.done(*levels[-1])
    return levels


def about(room: str) -> str:
    """Return what a room says of itself: the first paragraph of its docstring."""
    path = ROOT.joinpath(*room.split("."))
    text = ast.get_docstring(
        ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    )
    assert text, f"{room} says nothing of itself"
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(text.partition("\n\n")[0].split()))


def picture() -> str:
    """Return who may import whom as an SVG: a row for each room, a dot for each room that it may import.

    Rooms are ordered from the top floor down, so a dot left of the diagonal would be an import upwards.
    """
    rooms = [room for floor in reversed(floors()) for room in floor]
    end = MARGIN + SQUARE * len(rooms)
    shapes = []
    for row, room in enumerate(rooms):
        middle = MARGIN + SQUARE * row + SQUARE // 2
        name = room.replace(".", "/")
        shapes += [
            f'<path d="M{MARGIN} {middle}H{end}M{middle} {MARGIN}V{end}" stroke="#e4e4e4"/>',
            f'<text x="{MARGIN - 8}" y="{middle + 4}" text-anchor="end">{name}</text>',
            f'<text transform="translate({middle + 4} {MARGIN - 8}) rotate(-90)">{name}</text>',
            f'<rect x="{middle - 5}" y="{middle - 5}" width="10" height="10" fill="#bbb"/>',
        ]
        for lower in sorted(ROOMS[room], key=rooms.index):
            across = MARGIN + SQUARE * rooms.index(lower) + SQUARE // 2
            shapes.append(f'<circle cx="{across}" cy="{middle}" r="4.5"/>')
    size = end + SQUARE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" height="{size}"',
            '     font-family="sans-serif" font-size="11" fill="#1f4e79">',
            '<rect width="100%" height="100%" fill="#fff"/>',
            *shapes,
            "</svg>",
            "",
        ]
    )


def table() -> str:
    """Return what is in each room, floor by floor from the top, as Markdown."""
    lines = ["| floor | room | what is in it |", "|---|---|---|"]
    for height, rooms in reversed(list(enumerate(floors()))):
        lines += [f"| {height} | `{room.replace('.', '/')}` | {about(room)} |" for room in rooms]
    return "\n".join(lines)


if __name__ == "__main__":
    before, start, rest = PAGE.read_text().partition("<!-- rooms -->\n")
    _, end, after = rest.partition("<!-- end of rooms -->\n")
    assert start and end, f"{PAGE} lacks the marks between which the rooms stand"
    PAGE.write_text(f"{before}{start}{table()}\n{end}{after}")
    PICTURE.write_text(picture())
