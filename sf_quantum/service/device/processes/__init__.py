"""The processes that compute for the service: their limits, programs and messages.

``process_pool`` starts the processes, sends them requests and kills them; ``limits`` bounds
their memory and CPU time. ``program`` runs in each process, and ``messages`` defines the
format of requests and replies. In a process, ``verification`` checks a result against its
job, and ``merging`` joins the results of slices.
"""
