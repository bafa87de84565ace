"""A job."""
