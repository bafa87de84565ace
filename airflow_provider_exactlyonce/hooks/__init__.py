"""Adapters over the Spark and Kafka providers' hooks: users keep one connection of each."""
