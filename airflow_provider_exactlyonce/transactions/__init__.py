"""The command ``exactlyonce transactions``: what is open on a cluster, and an end of it that spares the living."""
