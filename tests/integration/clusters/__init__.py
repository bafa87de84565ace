"""Drivers and homes on the clusters that people have: a real HDFS and a real YARN; see docs/yarn.md."""
