-- A job with a directive #QPU stays pending until the QPU's service has a lease for it, and
-- gives the lease back however it ends. job_submit.lua adds the directive.
--
-- slurmctld itself calls slurm_bb_job_process, slurm_bb_pools and slurm_bb_paths, and waits
-- for them: they read small files, and wait for no process. The others run in processes of
-- slurmscriptd, which may take as long as they need, and end with their job. slurmctld calls
-- slurm_bb_pools every ten seconds, which also starts `sfq slurm watch` if that has ended.

local settings = dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "qpu.lua")
local BOUNDS = {"seconds", "shots", "qubits"}
-- after which a lease is looked at again before its job starts
local FRESH_SECONDS = 10
-- of sfq that says itself why it has failed
local SAID = {["1"] = true, ["2"] = true, ["75"] = true}

local function read(path)
	local file = io.open(path)
	local text = file and file:read("*a")
	if file then
		file:close()
	end
	return text
end

-- The folder of a job's script. Slurm 24.11 names one that does not exist for most tasks of an
-- array, in which it then fails to write the file of slurm_bb_paths.
local function folder_of(script)
	return script:match("^(.*)/")
end

-- The directive of a job: the QPU's name, and the bounds that are declared. Where there is no
-- script, it stands in Slurm's description of the job (`info`).
local function declared(script, info)
	local text = read(script) or info and info.burst_buffer or ""
	local line = ("\n" .. text):match("\n#QPU([^\n]*)")
	if not line then
		return nil
	end
	local request = {name = line:match("%spool=([%w_]+)") or settings.default}
	for _, bound in ipairs(BOUNDS) do
		request[bound] = tonumber(line:match("%s" .. bound .. "=([%d.]+)"))
	end
	return request
end

-- Whether a job has one directive, as job_submit.lua writes it. Users may write their own, and
-- Slurm counts a job in `asking` only by its pool and capacity.
local function is_plain(script)
	local text = "\n" .. (read(script) or "")
	local _, count = text:gsub("\n#QPU", "")
	local bounds = (text:match("\n#QPU([^\n]*)") .. " "):match("^ pool=[%w_]+ capacity=1 (.*)$")
	for word in (bounds or ""):gmatch("%S+") do
		local bound, value = word:match("^(%l+)=(%d+%.?%d*)$")
		local digits = ({seconds = 20, shots = 10, qubits = 10})[bound]
		local whole = bound == "seconds" or not word:find(".", 1, true)
		if not (digits and whole and #value < digits and tonumber(value) > 0) then
			return false
		end
	end
	return bounds ~= nil and count == 1
end

-- Run sfq slurm, and return its result for Slurm. What goes to the shell are the site's
-- settings, names and numbers.
local function sfq(action, job, request)
	local words = {settings.sfq, "slurm", action, job, "--state", settings.state}
	if request then
		table.insert(words, "--qpu " .. request.name)
	end
	if action == "acquire" then
		if settings.can_start then
			table.insert(words, "--can-start " .. settings.can_start)
		end
		for _, rule in ipairs(settings.classes or {}) do
			for _, what in ipairs({"qos", "partition", "priority"}) do
				if rule[what] then
					local about = what .. ":" .. rule[what] .. "=" .. rule.class
					table.insert(words, "--class-of '" .. about .. "'")
				end
			end
		end
		if request.seconds then
			table.insert(words, string.format("--expected-seconds %.17g", request.seconds))
			table.insert(words, string.format("--max-qpu-seconds %.17g", request.seconds))
		end
		for _, bound in ipairs({"shots", "qubits"}) do
			if request[bound] then
				table.insert(words, string.format("--max-%s %d", bound, request[bound]))
			end
		end
	end
	table.insert(words, "--qrmi-config " .. settings.qrmi_config)
	table.insert(words, settings.options or "")
	local pipe = io.popen(table.concat(words, " ") .. " 2>&1; echo $?")
	local output = pipe:read("*a")
	pipe:close()
	local said, status = output:match("^(.-)%s*(%d+)%s*$")
	if status == "0" then
		return slurm.SUCCESS
	end
	slurm.log_error("qpu: %s of job %s: %s", action, job, said or output)
	if action == "acquire" and not SAID[status] then
		-- Slurm will hold the job, and `sfq slurm watch` release it.
		local mark = io.open(settings.state .. "/" .. job .. ".held", "w")
		if mark then
			mark:write("cannot 0 - ", request.name, ": the process that asked was killed\n")
			mark:close()
		end
	end
	return slurm.ERROR, (said or ""):match("[^\n]*$")
end

function slurm_bb_job_process(script, uid, gid)
	local request = declared(script)
	if not request then
		return slurm.SUCCESS
	end
	if not is_plain(script) then
		return slurm.ERROR, "expected one line #QPU pool=NAME capacity=1 " ..
			"[seconds=S] [shots=N] [qubits=N]"
	end
	local limits = settings.qpus[request.name]
	if not limits then
		return slurm.ERROR, "there is no QPU " .. request.name
	end
	for _, bound in ipairs(BOUNDS) do
		if limits[bound] and (request[bound] or 0) > limits[bound] then
			return slurm.ERROR, string.format(
				"the job declares %g %s, QPU %s has at most %g",
				request[bound], bound, request.name, limits[bound])
		end
	end
	return slurm.SUCCESS
end

-- The process that gives back what jobs leave, unless it runs. It goes on without slurmctld.
local function start_watch()
	local id = (read(settings.state .. "/watch") or ""):match("^(%d+)")
	if id and (read("/proc/" .. id .. "/cmdline") or ""):find("%zwatch%z") then
		return
	end
	local words = {"setsid --fork", settings.sfq, "slurm watch --state", settings.state}
	for name, qpu in pairs(settings.qpus) do
		local share = qpu.share or math.max(1, math.floor(qpu.asking / 2))
		table.insert(words, string.format("--asking %s=%d:%d", name, qpu.asking, share))
	end
	table.insert(words, "--hold-seconds " .. (settings.hold_seconds or 30))
	if settings.can_start then
		table.insert(words, "--can-start " .. settings.can_start)
	end
	table.insert(words, "--qrmi-config " .. settings.qrmi_config)
	table.insert(words, settings.options or "")
	os.execute(table.concat(words, " ") .. " </dev/null >/dev/null 2>&1 &")
end

function slurm_bb_pools()
	start_watch()
	local left = read(settings.state .. "/places") or ""
	local pools = {}
	for name, qpu in pairs(settings.qpus) do
		-- those of jobs that are gone, which Slurm does not free
		local more = tonumber(("\n" .. left):match("\n" .. name .. " (%d+)")) or 0
		table.insert(pools, string.format(
			'{"id": "%s", "quantity": %d, "granularity": 1}', name, qpu.asking + more))
	end
	return slurm.SUCCESS, '{"pools": [' .. table.concat(pools, ", ") .. "]}"
end

function slurm_bb_setup(job, uid, gid, pool, size, script)
	return slurm.SUCCESS
end

-- slurmscriptd forks without closing what its other threads have open. So a process may have
-- both ends of the pipe of another job's (but not of its own), whose end slurmscriptd does
-- not see before this process ends, though this job may wait for the other one.
local function close_pipes_of_others()
	local known, unistd = pcall(require, "posix.unistd")
	if not known then
		return
	end
	local stat = require("posix.sys.stat")
	local first = {}
	for fd = 3, 1023 do
		local file = stat.stat("/proc/self/fd/" .. fd)
		if file and stat.S_ISFIFO(file.st_mode) ~= 0 then
			if first[file.st_ino] then
				unistd.close(first[file.st_ino])
				unistd.close(fd)
			end
			first[file.st_ino] = fd
		end
	end
end

function slurm_bb_data_in(job, script, uid, gid, info)
	close_pipes_of_others()
	if not read(script) then
		os.execute("mkdir -p -m 700 '" .. folder_of(script) .. "'")
	end
	return sfq("acquire", job, declared(script, info))
end

-- Slurm 23.11 and later ask whether slurm_bb_data_in has left anything to wait for.
function slurm_bb_test_data_in(job, script, uid, gid)
	return slurm.SUCCESS
end

function slurm_bb_real_size(job, uid, gid)
	return slurm.SUCCESS
end

function slurm_bb_paths(job, script, path, uid, gid)
	local variables = read(settings.state .. "/" .. job)
	if not (variables and variables:find("_TOKEN=")) then
		return slurm.ERROR
	end
	local file = io.open(path, "w")
	if not file then
		return slurm.ERROR
	end
	file:write((variables:gsub("^#[^\n]*\n", "")))
	file:close()
	return slurm.SUCCESS
end

-- An error queues the job again, which then waits for another lease.
function slurm_bb_pre_run(job, script, uid, gid, info)
	local variables = read(settings.state .. "/" .. job) or ""
	local acquired = tonumber(variables:match("^# (%d+)"))
	if acquired and os.time() - acquired < FRESH_SECONDS then
		return slurm.SUCCESS
	end
	return sfq("confirm", job, declared(script, info))
end

-- Give back what slurm_bb_data_in has acquired, unless that is done. If it cannot be done now,
-- `sfq slurm watch` does it later: after a failure, Slurm would never start the job again.
local function release(job, script, info)
	if read(settings.state .. "/" .. job) then
		sfq("release", job, declared(script, info))
	end
	return slurm.SUCCESS
end

function slurm_bb_post_run(job, script, uid, gid, info)
	return release(job, script, info)
end

function slurm_bb_data_out(job, script, uid, gid)
	return slurm.SUCCESS
end

-- As slurm_bb_test_data_in, of slurm_bb_data_out.
function slurm_bb_test_data_out(job, script, uid, gid)
	return slurm.SUCCESS
end

-- Also of jobs that have not started, and where slurm_bb_post_run has failed.
function slurm_bb_job_teardown(job, script, hurry, uid, gid, info)
	if not read(script) then
		os.remove(folder_of(script) .. "/path")
		os.remove(folder_of(script))
	end
	return release(job, script, info)
end

function slurm_bb_get_status(uid, gid, ...)
	local pipe = io.popen(settings.sfq .. " qpus --qrmi-config " .. settings.qrmi_config ..
		" " .. (settings.options or "") .. " 2>&1")
	local output = pipe:read("*a")
	pipe:close()
	return slurm.SUCCESS, output
end
