"""The live page of a running job: a read-only web server on this machine; metrics for Prometheus.

A page shows a *view*: the metrics, the plan, the last batches and the changes of a job, as plain data. A running session gives its own
view; beside a job in another process the view is read from a file in the checkpoint, which the session writes after its batches.
"""
