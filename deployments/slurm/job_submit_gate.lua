-- Hold jobs with --comment="qpu=NAME ..." until `sfq slurm gate` has their lease. A site that has a
-- job_submit.lua calls the function from there.
local function hold_for_lease(job)
	if (" " .. (job.comment or "")):find("[%s,]qpu=") then
		job.priority = 0
	end
end

function slurm_job_submit(job, partitions, uid)
	hold_for_lease(job)
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
	return slurm.SUCCESS
end
