-- The settings of job_submit.lua and burst_buffer.lua, in the folder of slurm.conf.
return {
	-- the command of sf_quantum, on the controller's host                            -- yours
	sfq = "/opt/sfq/bin/sfq",
	-- the site's QPUs                                                               -- yours
	qrmi_config = "/etc/slurm/qrmi_config.json",
	-- of SlurmUser alone: the environment of the jobs, with their leases
	state = "/var/spool/slurmctld/qpu",
	-- more options of sfq, such as "--token-file /etc/slurm/qpu.token" of an admin
	options = "",
	-- what --gres=qpu:1 means; --gres=qpu:NAME:1 names another
	default = "qpu",
	qpus = {
		-- asking: jobs of Slurm that have a lease or ask for one, a process each on the
		-- controller's host; the others wait in the order of Slurm's priorities.
		-- Jobs that declare more than these are refused: qubits, shots, seconds.
		qpu = {asking = 8, qubits = 100},
	},
}
