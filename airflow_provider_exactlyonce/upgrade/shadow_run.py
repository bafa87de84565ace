"""The shadow run: a new version repeats the newest commits beside the pipeline, and its rows are compared.

Spark runs in a process of its own, submitted as a driver is: this module starts it and reads its report.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.control import json_store, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.storage.opening import location_of, store_of
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment, run_to_end

_PROGRAM: Final = Path(__file__).with_name("shadow_main.py")
_SHOWN_CHARACTERS: Final = 2000
REPORT: Final = "report.json"
_KINDS: Final = ("missing", "extra", "changed")


@dataclass(frozen=True, kw_only=True)
class ShadowRequest:
    """The request to the shadow run's process, which writes its answer and its other files beside the request.

    :param application: the new version's file
    """

    application: str
    pipeline: str
    options: Options


def run(home: Home, plan: Plan, application: str, tools: UpgradeEnvironment, *, dry_run: bool) -> dict[str, Any]:
    """Make the shadow run of a plan's new version; returns the report.

    :param application: the new version's file
    :raises RefusedError: when there is nothing to repeat, or nothing to compare with
    :raises ExactlyOnceError: when its process failed
    """
    folder, log = upgrade_plan.path_of(home, "shadow", dry_run=dry_run), home.logs / "shadow.log"
    store = store_of(folder)
    store.remove(folder)  # of one that was killed
    run_folder = folder / uuid.uuid4().hex  # that one may still live, on another host, and report
    request = run_folder / "request.json"
    shadow_request = ShadowRequest(application=application, pipeline=plan.pipeline, options=plan.options)
    try:
        json_store.write(request, codec.dump(shadow_request))
        tools.tell(f"the shadow run's output is in {log}")
        launch = tools.launch(str(_PROGRAM), ["--home", str(home), location_of(request)])
        code = run_to_end(launch, log, f"shadow-{plan.id}")
        answer = json_store.read(run_folder / REPORT)
    finally:
        store.remove(folder)
    if answer is None:
        output = log.read_text(errors="replace")[-_SHOWN_CHARACTERS:]
        raise ExactlyOnceError(f"the shadow run ended with exit code {code}; its output in {log} ends with:\n{output}")
    if "refused" in answer:
        raise RefusedError(f"the shadow run was refused: {answer['refused']}")
    return answer


def forget(home: Home) -> None:
    """Remove the copy of the state of a shadow run that was killed, which no other one will follow."""
    folder = upgrade_plan.path_of(home, "shadow")
    store_of(folder).remove(folder)


def sentence(report: Mapping[str, Any]) -> str:
    """Return a report's summary, in a line."""
    counts = report["counts"]
    differences = ", ".join(f"{counts.get(kind, 0):,} {kind}" for kind in _KINDS)
    verdict = "" if report["intended"] else f"; not intended: {', '.join(report['unintended'])}"
    first, last = report["commits"]
    return (
        f"shadow run of commits {first} to {last}: {report['delivered']:,} rows were delivered, {report['equal']:,} "
        f"are equal, {differences}{verdict}"
    )


def text(report: Mapping[str, Any]) -> str:
    """Return a report for people: counts by kind and by column, and examples."""
    lines = [sentence(report), f"repeated from {report['base']}", f"compared: {', '.join(report['columns'])}"]
    if report["columns_left_out"]:
        lines.append(f"not compared: {', '.join(report['columns_left_out'])}")
    lines += [
        f"{count:,} changed in {kind.partition('.')[2]}" for kind, count in report["counts"].items() if "." in kind
    ]
    for kind in _KINDS:
        for example in report["examples"].get(kind, []):
            if kind == "changed":
                changes = "; ".join(
                    f"{name}: {example['delivered'].get(name)} -> {example['recomputed'].get(name)}"
                    for name in example["columns"]
                )
                lines.append(f"changed  {example['topic']} {example['key']}: {changes}  in {example['delivered']}")
            else:
                lines.append(f"{kind:<7}  {example['topic']} {example['key']}: {example['content']}")
    return "\n".join(lines)
