"""The command ``exactlyonce transactions``: lists a cluster's open transactions, and aborts one if no driver uses it.

The requests are in ``kafka.cluster_transactions``; here it is decided what may be aborted. The sensor and its trigger
wait for the same answers, and the doctor asks for them.
"""
