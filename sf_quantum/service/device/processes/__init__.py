"""The processes that compute for the service: their limits, programs and messages.

``process_pool`` starts them, gives them work and kills them, within the memory and CPU time of
``limits``; ``program`` is what runs in them, and ``messages`` how both sides talk. In a process,
``verification`` checks a result against its job, and ``merging`` joins the results of slices.
"""
