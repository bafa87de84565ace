#!/bin/bash
# What the pods of a pipeline run: Spark says "driver" or "executor" first, and the rest in variables.
set -euo pipefail

role=$1
shift
case "$role" in
  driver)
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    options=()
    for (( n = 0; ; n++ )); do
      name=SPARK_JAVA_OPT_$n
      [[ -v $name ]] || break
      options+=("${!name}")
    done
    exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$SPARK_CONF_DIR:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    echo "$role is neither driver nor executor" >&2
    exit 64
    ;;
esac
