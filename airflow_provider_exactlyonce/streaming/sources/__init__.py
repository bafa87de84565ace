"""Sources whose offsets live in the checkpoint."""
