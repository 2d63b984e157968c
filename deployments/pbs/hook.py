"""Hook of OpenPBS: a job with `-l qpu=NAME` starts only when `sfq pbs gate` has its lease.

The gate releases the operator's hold, which the job's user cannot release.
"""

import pbs

event = pbs.event()
job = event.job
qpu = job.Resource_List["qpu"]
if event.type == pbs.MODIFYJOB:
    # What is not modified is none here.
    if qpu is not None and str(qpu) != str(event.job_o.Resource_List["qpu"]):
        event.reject(
            "the qpu of a job cannot be changed: submit it again with -l qpu=NAME"
        )
elif qpu and event.type == pbs.QUEUEJOB:
    job.Hold_Types = pbs.hold_types("uo" if "u" in str(job.Hold_Types) else "o")
elif qpu:
    # The scheduler also starts a job that was held after the scheduler had read the queue.
    whole = pbs.server().job(job.array_id) if job.array_id else job
    if "o" in str(whole.Hold_Types or ""):
        event.reject("the job waits for a lease of its QPU")
