"""The contract between the Airflow half and the driver: a directory of small JSON documents."""
