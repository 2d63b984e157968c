-- Jobs with --gres=qpu:1 or --gres=qpu:NAME:1 wait for a lease: burst_buffer.lua does the
-- rest. If the site has a job_submit.lua already, call qpu_directive in it.

local settings = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "qpu.lua")
local FIELDS = {"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}
local BOUNDS = {"seconds", "shots", "qubits"}

-- The QPU that a job asks for, or nil. Of several QPUs, each is a type of the gres: a job
-- that names none gets the default one.
local function qpu_of(job)
	for _, field in ipairs(FIELDS) do
		local requests = "," .. (job[field] or "")
		local rest = requests:match(",gres[:/]qpu(%f[^%w_].*)")
		if rest then
			local name = rest:match("^[:=]([%a_][%w_]*)")
			if not name and next(settings.qpus, next(settings.qpus)) then
				local typed = "%0:" .. settings.default
				job[field] = requests:gsub("gres[:/]qpu%f[^%w_]", typed, 1):sub(2)
			end
			return name or settings.default
		end
	end
end

-- The directive of a job that asks for a QPU. Its bounds are words of the comment:
-- --comment="qpu-qubits=40 qpu-seconds=30"
local function qpu_directive(job)
	local name = qpu_of(job)
	if not name then
		return nil
	end
	local words = {"#QPU pool=" .. name .. " capacity=1"}
	for _, bound in ipairs(BOUNDS) do
		local value = (" " .. (job.comment or "")):match("[%s,]qpu%-" .. bound .. "=([%d.]+)")
		if value then
			table.insert(words, bound .. "=" .. value)
		end
	end
	return table.concat(words, " ")
end

function slurm_job_submit(job, partitions, uid)
	local directive = qpu_directive(job)
	if not directive then
		return slurm.SUCCESS
	end
	local script = job.script
	if not script or script == "" then
		-- of salloc and srun
		job.burst_buffer = directive
	elseif not script:find("\n#QPU") then
		job.script = script:gsub("\n", function() return "\n" .. directive .. "\n" end, 1)
	end
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
	return slurm.SUCCESS
end
