"""The Kafka sink as a user declares it, and the columns of its records. ``commit`` writes them."""
