"""The shop's programs with state, a stream each and a gate behind it."""

# [START dag_shop_states]
import pendulum
from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor

PROGRAMS = ("orders", "alerts", "payments", "averages", "distinct", "switch", "counts", "parcels")

with DAG("shop_states", schedule=None, max_active_tasks=2, params={"homes": "~/.exactlyonce"}):
    for program in PROGRAMS:
        stream = StreamingPipelineOperator(
            task_id=program,
            application=f"jobs/shop_{program}.py",
            checkpoint=f"{{{{ params.homes }}}}/shop-{program}",
            until="available",
            restart_strategy=RestartStrategy.fixed_delay(attempts=3, delay=pendulum.duration(seconds=1)),
            conf={"spark.sql.shuffle.partitions": "4"},
        )
        stream >> CommitGateSensor(
            task_id=f"{program}_gate",
            pipeline=f"shop-{program}",
            commit=f"{{{{ ti.xcom_pull('{program}')['commit'] }}}}",
            deferrable=True,
        )
# [END dag_shop_states]
