-- The settings of job_submit.lua and burst_buffer.lua, in the folder of slurm.conf.
return {
	-- the command of sf_quantum, on the controller's host                            -- yours
	sfq = "/opt/sfq/bin/sfq",
	-- the site's QPUs                                                               -- yours
	qrmi_config = "/etc/slurm/qrmi_config.json",
	-- of SlurmUser alone: the environment of the jobs, with their leases
	state = "/var/spool/slurmctld/qpu",
	-- qpu_can_start.c: whether Slurm could start a job, before it asks for a lease
	can_start = "/opt/sfq/bin/qpu-can-start",
	-- A lease whose job has no nodes after this time goes to the next job.
	hold_seconds = 30,
	-- more options of sfq, such as "--token-file /etc/slurm/qpu.token" of an admin
	options = "",
	-- The class of a job in the QPU's service: the first line that fits. The service's own
	-- limits on classes apply as well, and its default to other jobs.
	classes = {
		-- {qos = "urgent", class = "production"},
		-- {partition = "debug", class = "development"},
		-- {priority = 100000, class = "production"},  -- from this priority on
	},
	-- what --gres=qpu:1 means; --gres=qpu:NAME:1 and --qpu=NAME name another
	default = "qpu",
	qpus = {
		-- asking: jobs of Slurm that have a lease or ask for one, a process each on the
		-- controller's host; the others wait in the order of Slurm's priorities.
		-- share: of one user, while jobs of others wait; half of them if it is not given.
		-- gres: what a job with --qpu=NAME gets if it asks for no gres/qpu; of several
		-- QPUs "qpu:NAME:1", and nothing where the QPU is no gres.
		-- Jobs that declare more than these are refused: qubits, shots, seconds.
		qpu = {asking = 8, gres = "qpu:1", qubits = 100},
	},
}
