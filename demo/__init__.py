"""The main job on real purchases, killed twice, and a report of what its readers saw. Run ``python -m demo``."""
