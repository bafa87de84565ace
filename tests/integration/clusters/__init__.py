"""Drivers on the clusters that people have: a real YARN with HDFS; see docs/deploy.md."""
