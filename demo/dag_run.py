"""Runs the DAG in this process as Airflow's ``dag.test()`` does: ``python -m demo.dag_run HOME RESULT``.

Writes the run's state, and each task's with its times, to the file RESULT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DAGS = Path(__file__).parents[1] / "dags"
DAG_ID = "shop_totals"


def main(home: str, result: Path) -> int:
    """Run; 0 when every task succeeded."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.utils.state import DagRunState

    sys.path.insert(0, str(DAGS))  # as Airflow does for a folder of DAGs
    bag = DagBag(dag_folder=str(DAGS))
    if bag.import_errors:
        raise ImportError("\n".join(f"{file}: {error}" for file, error in bag.import_errors.items()))
    run = bag.dags[DAG_ID].test(run_conf={"home": home})
    tasks = {task.task_id: _account(task) for task in run.get_task_instances()}
    result.write_text(json.dumps({"state": str(run.state), "tasks": tasks}))
    return 0 if run.state == DagRunState.SUCCESS else 1


def _account(task: Any) -> dict[str, Any]:
    return {
        "state": str(task.state),
        "started": task.start_date and task.start_date.timestamp(),
        "ended": task.end_date and task.end_date.timestamp(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
