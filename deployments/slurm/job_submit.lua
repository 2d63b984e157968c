-- Jobs with --qpu=NAME (qpu.c), --gres=qpu:1 or --gres=qpu:NAME:1 wait for a lease:
-- burst_buffer.lua does the rest. If the site has a job_submit.lua already, copy the local
-- functions into it, and call add_directive.

local settings = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "qpu.lua")
local FIELDS = {"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}
local BOUNDS = {seconds = "a number", shots = "a whole number", qubits = "a whole number"}

-- The options of qpu.c: name, seconds, shots, qubits.
local function options_of(job)
	local given = {}
	for _, variable in pairs(job.spank_job_env or {}) do
		local key, value = variable:match("^QPU_(%u+)=(.*)$")
		if key then
			given[key:lower()] = value
		end
	end
	return given
end

-- The QPU that a job asks for, or nil and what is wrong with its request. Of several QPUs,
-- each is a type of the gres: a job that names none gets the default one.
local function qpu_of(job, name)
	local asked
	for _, field in ipairs(FIELDS) do
		local requests = "," .. (job[field] or "") .. ","
		for rest in requests:gmatch(",gres[:/]qpu(%f[^%w_][^,]*)") do
			local typed = rest:match("^[:=]([%a_][%w_]*)")
			if typed and name and typed ~= name then
				return nil, string.format("--qpu=%s: --gres names QPU %s", name, typed)
			end
			local named = typed or name or settings.default
			if asked and asked ~= named then
				return nil, string.format(
					"--gres asks for the QPUs %s and %s, a job gets the lease of one",
					asked, named)
			end
			asked = named
			if not typed and next(settings.qpus, next(settings.qpus)) then
				local as = "%1:" .. named .. "%2"
				job[field] = requests:gsub("(,gres[:/]qpu)([:=]?%d*,)", as):sub(2, -2)
			end
		end
	end
	if asked then
		return asked
	end
	local gres = name and settings.qpus[name] and settings.qpus[name].gres
	if gres then
		local others = job.tres_per_node
		-- Slurm begins it with `gres:` or, in later versions, with `gres/`
		job.gres = gres
		if others and others ~= "" then
			job.tres_per_node = others .. "," .. job.tres_per_node
		end
	end
	return name
end

-- The bounds that a job declares, as words of its directive, or nil and what is wrong. Where
-- there are no options, they are words of the comment:
-- --comment="qpu-qubits=40 qpu-seconds=30"
local function bounds_of(job, given)
	local values = {}
	for bound, value in (" " .. (job.comment or "")):gmatch("[%s,]qpu%-(%l+)=([^%s,]*)") do
		values[bound] = value
	end
	for bound in pairs(BOUNDS) do
		values[bound] = given[bound] or values[bound]
	end
	local words = ""
	for bound, value in pairs(values) do
		local expected, number = BOUNDS[bound], tonumber(value)
		if not expected then
			return nil, string.format(
				"qpu-%s: expected qpu-seconds, qpu-shots or qpu-qubits", bound)
		end
		local plain = value:match("^[%d.]+$") and number and number > 0
		if not plain or expected ~= "a number" and value:find(".", 1, true) then
			return nil, string.format(
				"qpu-%s: expected %s above 0, not '%s'", bound, expected, value)
		end
		words = words .. " " .. bound .. "=" .. value
	end
	return words
end

-- Add the directive to a job that asks for a QPU. Returns what is wrong with it, if anything.
local function add_directive(job)
	local given = options_of(job)
	local name, problem = qpu_of(job, given.name)
	if not name then
		local option = next(given)
		if option and not problem then
			problem = "--qpu-" .. option .. ": the job asks for no QPU, add --qpu=NAME"
		end
		return problem
	end
	if not settings.qpus[name] then
		return "there is no QPU " .. name
	end
	local bounds, wrong = bounds_of(job, given)
	if not bounds then
		return wrong
	end
	local directive = "#QPU pool=" .. name .. " capacity=1" .. bounds
	local script = job.script
	if not script or script == "" then
		-- of salloc and srun
		job.burst_buffer = directive
	elseif not script:find("\n#QPU") then
		-- one of a single line may have no end of a line
		local function added() return "\n" .. directive .. "\n" end
		job.script = (script .. "\n"):gsub("\n", added, 1)
	elseif next(given) then
		return "--qpu: the script has a directive #QPU, remove one of them"
	end
end

function slurm_job_submit(job, partitions, uid)
	local problem = add_directive(job)
	if problem then
		slurm.log_user("%s", problem)
		return slurm.ERROR
	end
	return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
	return slurm.SUCCESS
end
