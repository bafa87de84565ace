"""Every night: bring a stream to the newest version of its job, in a maintenance window, and back if it isn't stable.

Whoever releases a version puts its file where ``params.application`` says. A night without a new version changes
nothing. The stream's own DAG (``until="forever"``) takes over the driver that the upgrade has started.
"""

# [START dag_shop_upgrade]
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_exactlyonce.operators.savepoint import CleanUpSavepointsOperator
from airflow_provider_exactlyonce.operators.upgrade import RollbackPipelineOperator, UpgradePipelineOperator
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor

PIPELINE = {"pipeline": "{{ params.pipeline }}"}
CONF = {"spark.sql.shuffle.partitions": "4"}

with DAG(
    "shop_upgrade",
    schedule="0 2 * * *",
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    params={
        "pipeline": "shop-totals",
        "application": "jobs/shop_totals.py",
        "shadow_commits": 20,
        "stable_after": 5,
        "rehearse": False,
    },
):

    @task.short_circuit
    def window_is_open(rehearse: str) -> bool:
        """Between two and five, unless it is a rehearsal."""
        from datetime import UTC, datetime

        return rehearse == "True" or 2 <= datetime.now(UTC).hour < 5

    upgrade = UpgradePipelineOperator(
        task_id="upgrade",
        **PIPELINE,
        application="{{ params.application }}",
        conf=CONF,
        savepoint="before {{ run_id }}",
        shadow_commits="{{ params.shadow_commits }}",
        stable_after="{{ params.stable_after }}",
        stable_timeout=timedelta(minutes=20),
        on_unstable="rollback",
        retries=3,
        deferrable=True,
    )
    running = PipelineStateSensor(task_id="running", **PIPELINE, states=["running"], timeout=300, deferrable=True)
    clean_up = CleanUpSavepointsOperator(task_id="clean_up", **PIPELINE, count=10, days=7)

    window_is_open("{{ params.rehearse }}") >> upgrade >> running >> clean_up

with DAG("shop_rollback", schedule=None, params={"pipeline": "shop-totals"}):
    # For a version that turns out to be wrong days later: triggered by hand.
    RollbackPipelineOperator(task_id="rollback", **PIPELINE, conf=CONF, deferrable=True)
# [END dag_shop_upgrade]
