"""The command ``exactlyonce transactions``: what is open on a cluster, and an end of it that spares the living.

The requests are in ``kafka.cluster_transactions``; here it is decided what may end. The sensor and its trigger wait
for the same answers, and the doctor asks for them.
"""
