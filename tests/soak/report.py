"""What a soak showed: figures of its journal, as Markdown and as one page that needs nothing but itself."""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.soak import journal
from tests.soak.samples import SOAK
from tests.soak.slopes import GROWS, Slope, slope

MEASURES = {
    "rss": ("memory, MB", 1),
    "files": ("open files", 0),
    "threads": ("threads", 0),
    "cpu": ("CPU, % of a core", 1),
}
#: So much an hour is no leak; memory may also grow by a share of itself.
_ALLOWED = {"rss": 5.0, "files": 2.0, "threads": 1.0, "cpu": 3.0}
_ALLOWED_SHARE = 0.02
#: What a slope is no question of: what measures, and what ends soon.
_NOT_JUDGED = (SOAK, "others", "a driver of before")
#: In which this project has code.
_OURS = ("soak-", "triggerer", "scheduler")
_MOST_LINES = 12

Facts = dict[str, Any]
Points = Sequence[tuple[float, float]]


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that so large a share of all is not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The slope of one measure of one kind of process, and what it means."""

    role: str
    measure: str
    slope: Slope
    verdict: str

    @property
    def is_ours(self) -> bool:
        """Whether code of this project runs in it."""
        return self.role.startswith(_OURS)

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return f"{self.role} ({MEASURES[self.measure][0]})"


class Story:
    """A soak, by its journal: whole, or as far as it got.

    :param folder: of the journal
    """

    def __init__(self, folder: Path) -> None:
        self._events = list(journal.read(folder / journal.EVENTS))
        self.samples = list(journal.read(folder / journal.SAMPLES))

    def of(self, kind: str) -> list[Facts]:
        """Return what happened of a kind."""
        return [event for event in self._events if event["kind"] == kind]

    def one(self, kind: str) -> Facts:
        """Return what happened once; nothing if it did not."""
        return next(iter(self.of(kind)), {})

    @property
    def began(self) -> float:
        """When both pipelines ran, seconds since the epoch."""
        return float(self.one("running").get("at") or self._events[0]["at"])

    @property
    def seconds(self) -> float:
        """How long bookings were sent."""
        return float((self.one("drained") or self._events[-1])["at"]) - self.began

    @property
    def findings(self) -> list[Facts]:
        """All that is off."""
        return self.of("finding")

    @property
    def is_right(self) -> bool:
        """Whether it came to its end and nothing is off."""
        return bool(self.of("end")) and not self.findings

    def recoveries(self) -> dict[str, list[Facts]]:
        """Return what was done, by what it was."""
        found = defaultdict(list)
        for event in self.of("done"):
            if "recovered" in event:
                found[event["what"]].append(event)
        return dict(sorted(found.items()))

    def processes(self, measure: str) -> dict[str, dict[object, list[tuple[float, float]]]]:
        """Return {role: {process: its samples, in seconds from the beginning}}."""
        found: dict[str, dict[object, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for sample in self.samples:
            if sample["kind"] == "process":
                found[sample["role"]][sample["pid"]].append((sample["at"] - self.began, sample[measure]))
        if measure == "cpu":  # which is counted from a process's beginning on
            return {role: {pid: _rates(samples) for pid, samples in of.items()} for role, of in found.items()}
        return found

    def slopes(self) -> list[Judged]:
        """Return each kind of process's slopes, as far as one lived for long enough."""
        judged = []
        for measure in MEASURES:
            for role, processes in sorted(self.processes(measure).items()):
                if not role.startswith(_NOT_JUDGED) and (found := slope(processes)):
                    verdict = found.verdict(_allowed(measure, found))
                    judged.append(Judged(role=role, measure=measure, slope=found, verdict=verdict))
        return judged

    def sizes(self) -> dict[str, list[tuple[float, float]]]:
        """Return {what: how large it was}."""
        found = defaultdict(list)
        for sample in self.samples:
            if sample["kind"] == "size":
                found[sample["name"]].append((sample["at"] - self.began, float(sample["value"])))
        return found


def _rates(samples: Points) -> list[tuple[float, float]]:
    """Return how fast a count rises between two samples each, in per cent of real time."""
    return [
        (later, 100 * (after - before) / (later - earlier))
        for (earlier, before), (later, after) in pairwise(samples)
        if later > earlier
    ]


def _allowed(measure: str, found: Slope) -> float:
    share = _ALLOWED_SHARE * found.typical if measure == "rss" else 0.0
    return max(_ALLOWED[measure], share)


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(story: Story) -> str:
    """Return the report's tables."""
    parts = [verdict(story), _table(("", ""), _figures(story)), _table(_RECOVERY, _recovery_rows(story))]
    ours = [judged for judged in story.slopes() if judged.is_ours]
    parts += [_table(_SLOPES, _slope_rows(ours)), _table(_GROWTH, _growth_rows(story))]
    if story.findings:
        parts.append(_table(("where", "what", "count", "note"), _finding_rows(story)))
    return "\n\n".join(parts) + "\n"


def verdict(story: Story) -> str:
    """Return the sentences that matter."""
    if story.findings:
        first = f"OFF: {len(story.findings)} findings."
    elif not story.of("end"):
        first = "CUT OFF: it did not come to its end; nothing is off up to there."
    else:
        sent = story.one("end")["sent"]
        first = f"RIGHT: each of {sent:,} bookings is in every sink once, to the cent."
    return f"{first} {_leaks(story.slopes())}"


def _leaks(slopes: Sequence[Judged]) -> str:
    ours = [judged for judged in slopes if judged.is_ours]
    growing = [judged.name for judged in ours if judged.verdict == GROWS]
    counts = Counter(judged.verdict for judged in ours)
    told = ", ".join(f"{number} {name}" for name, number in counts.items()) or "no process lived for long enough"
    text = f"LEAK: {', '.join(growing)}." if growing else f"No leak was found; slopes: {told}."
    if others := [judged.name for judged in slopes if judged.verdict == GROWS and not judged.is_ours]:
        text += f" Of others grow: {', '.join(others)}."
    return text


def _figures(story: Story) -> list[tuple[str, str]]:
    meta, end = story.one("began"), story.one("end")
    commits, claims = story.of("commit"), story.of("claim")
    gates, held = ([event["seconds"] for event in story.of(kind)] for kind in ("gate", "held"))
    rows = [
        ("length, from the first bookings to the end of the drain", f"{story.seconds / 60:.1f} min"),
        ("seed, bookings a second", f"{meta.get('seed')}, {meta.get('rate')}"),
        ("bookings sent", f"{end.get('sent', 0):,}"),
        *((f"judged in {where}", f"{rows:,}") for where, rows in end.get("judged", {}).items()),
    ]
    for pipeline in dict.fromkeys(commit["pipeline"] for commit in commits):
        times = [commit["seconds"] for commit in commits if commit["pipeline"] == pipeline]
        runs = len({claim["run"] for claim in claims if claim["pipeline"] == pipeline})
        rows.append((f"{pipeline}: commits, runs", f"{len(times):,}, {runs:,}"))
        rows.append((f"{pipeline}: a commit takes, p50 / p99", f"{_two(times)} s"))
    rows.append(("gates that opened", f"{len(gates):,}"))
    if gates:
        rows.append(("a gate waits, p50 / p99", f"{_two(gates)} s"))
    if held:
        rows.append(("readers are held up, p50 / p99 / longest", f"{_two(held)} / {max(held):.1f} s ({len(held):,})"))
    if skipped := story.of("skipped"):
        rows.append(("kills that were left out, because others took long", f"{len(skipped)}"))
    if restarted := story.of("ended by itself"):
        rows.append(("parts of Airflow that ended by themselves", ", ".join(event["part"] for event in restarted)))
    return [*rows, *(("limit of this machine", limit) for limit in story.one("running").get("limits", []))]


_RECOVERY = ("what", "times", "all went on", "p50, s", "p99, s", "longest, s")
_SLOPES = ("process", "measure", "lives", "minutes", "median", "an hour", "95 % interval", "verdict")
_GROWTH = ("on disk", "first", "last", "an hour")


def _seconds(event: Facts) -> float | None:
    """Return how long it took until all went on, or until a savepoint or a change of the version was done."""
    return event["took"] if "took" in event else event["seconds"]  # type: ignore[no-any-return]


def _recovery_rows(story: Story) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for what, events in story.recoveries().items():
        seconds = [value for event in events if (value := _seconds(event)) is not None]
        figures = [f"{percentile(seconds, share):.1f}" for share in (0.5, 0.99, 1.0)] if seconds else ["", "", ""]
        rows.append((what, str(len(events)), str(len(seconds)), *figures))
    return rows


def _slope_rows(slopes: Iterable[Judged]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for judged in slopes:
        name, digits = MEASURES[judged.measure]
        found = judged.slope
        rows.append(
            (
                judged.role,
                name,
                str(found.processes),
                f"{found.seconds / 60:.0f}",
                f"{found.typical:,.{digits}f}",
                f"{found.per_hour:+,.1f}",
                f"{found.low:+,.1f} to {found.high:+,.1f}",
                judged.verdict,
            )
        )
    return rows


def _growth_rows(story: Story) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, points in sorted(story.sizes().items()):
        found = slope({name: points}, warm_up_seconds=0.0)
        show = _bytes if name.endswith("bytes") else _number
        an_hour = show(found.per_hour) if found else ""
        rows.append((name.removesuffix(", bytes"), show(points[0][1]), show(points[-1][1]), an_hour))
    return rows


def _finding_rows(story: Story) -> list[tuple[str, ...]]:
    return [
        (finding["where"], finding["finding"], str(finding["count"]), " ".join(finding["note"].split())[:600])
        for finding in story.findings
    ]


def _two(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f}"


def _bytes(value: float) -> str:
    return f"{value / 1024**2:,.1f} MB"


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)])


# -- the page ----------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c28 }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.verdict { padding: .8rem 1rem; border-radius: .4rem; background: #e7f4ea } .verdict.off { background: #fbe3e0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top }
td:not(:first-child) { white-space: nowrap } .notes td { white-space: normal } svg { width: 100%; height: auto }
footer { color: #666; margin: 2rem 0 }
"""


def page(story: Story) -> str:
    """Return the page."""
    state = "verdict" if story.is_right else "verdict off"
    sections = [
        ("What it was", _html(("", ""), _figures(story))),
        ("What was killed and done, and how soon all went on", _html(_RECOVERY, _recovery_rows(story))),
        ("Bookings and recoveries", _plot(_progress(story), "bookings") + _recovery_plot(story)),
        ("Slopes of processes", _html(_SLOPES, _slope_rows(story.slopes()))),
        *((f"{name[0].upper()}{name[1:]}", _plot(_totals(story, measure), name)) for measure, (name, _) in _all()),
        ("On disk", _html(_GROWTH, _growth_rows(story)) + _plot(_disk(story), "MB")),
    ]
    if story.findings:
        table = _html(("where", "what", "count", "note"), _finding_rows(story), css="notes")
        sections.insert(0, ("What is off", table))
    body = "".join(f"<h2>{escape(title)}</h2>{text}" for title, text in sections)
    made = f"{datetime.fromtimestamp(story.began, UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Soak</title><style>{_STYLE}</style>'
        f'<h1>Soak: {story.seconds / 60:.0f} minutes</h1><p class="{state}">{escape(verdict(story))}</p>{body}'
        f"<footer>Made by make soak, of the run that began on {made}.</footer></html>\n"
    )


def _all() -> Iterable[tuple[str, tuple[str, int]]]:
    return MEASURES.items()


def _html(head: Sequence[str], rows: Iterable[Sequence[str]], *, css: str = "") -> str:
    lines = [("th", head)] if any(head) else []
    cells = [
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in [*lines, *(("td", row) for row in rows)]
    ]
    return f'<table class="{css}">{"".join(cells)}</table>'


def _progress(story: Story) -> Mapping[str, Points]:
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    totals: dict[str, int] = defaultdict(int)
    for commit in story.of("commit"):
        totals[commit["pipeline"]] += commit["rows"]
        lines[commit["pipeline"]].append((commit["committed"] - story.began, totals[commit["pipeline"]]))
    return lines


def _totals(story: Story, measure: str) -> Mapping[str, Points]:
    """Return each role's sum over its processes; the largest ones only."""
    sums: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for role, processes in story.processes(measure).items():
        for samples in processes.values():
            for at, value in samples:
                sums[role][round(at / 10) * 10] += value
    largest = sorted(sums, key=lambda role: -max(sums[role].values()))[:_MOST_LINES]
    return {role: sorted(sums[role].items()) for role in largest}


def _disk(story: Story) -> Mapping[str, Points]:
    return {
        name.removesuffix(", bytes"): [(at, value / 1024**2) for at, value in points]
        for name, points in sorted(story.sizes().items())
        if name.endswith("bytes")
    }


def _plot(lines: Mapping[str, Points], unit: str) -> str:
    def draw(axes: Any) -> None:
        for label, points in lines.items():
            axes.plot([at / 60 for at, _ in points], [value for _, value in points], label=label, linewidth=1.2)
        axes.set_ylim(bottom=0)

    return _svg(draw, unit)


def _recovery_plot(story: Story) -> str:
    def draw(axes: Any) -> None:
        for what, events in story.recoveries().items():
            found = [(event["at"], value) for event in events if (value := _seconds(event)) is not None]
            moments = [(at - story.began) / 60 for at, _ in found]
            axes.plot(moments, [value for _, value in found], "o", label=what, markersize=4)
        axes.set_ylim(bottom=0)

    return _svg(draw, "seconds")


def _svg(draw: Callable[[Any], None], unit: str) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 3.2))
    axes.set_prop_cycle(color=list(pyplot.get_cmap("tab20")(range(20))))
    draw(axes)
    axes.set_xlabel("minutes")
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    return text.getvalue().partition("<svg")[2].join(("<svg", ""))


def write(folder: Path) -> Story:
    """Write the page and the Markdown beside the journal; returns what they tell."""
    story = Story(folder)
    (folder / "index.html").write_text(page(story))
    (folder / "soak.md").write_text(markdown(story))
    return story
