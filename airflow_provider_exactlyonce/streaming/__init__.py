"""What runs inside Spark: the job definition, its runner, and the commit coordinator. Imports no Airflow."""
