-- job_submit/lua plugin of the bridge, for jobs of a partition with shared nodes. One that could never run is told so
-- when it is submitted, in plain words; one that waits for nodes to come back is told for how long; the wishes that a job
-- writes into its comment are carried out and written down for the bridge in the admin comment.
--
-- Runs inside slurmctld, under its locks: it reads one small local file (at most once a second), and there is no network
-- and no other program in it. Whatever goes wrong is logged and the job goes through as it is, because an error that
-- escapes would stop every submission of the cluster from Slurm 26.05 on. It never touches assoc_qos, whose reading
-- crashes slurmctld before 25.05.3. Works with every Lua from 5.1, which Debian's Slurm has.
--
-- A site with a job_submit.lua of its own keeps it, and loads this file at its top with dofile: then slurm_job_submit and
-- slurm_job_modify are the two below, for the site's own functions to call. There are no other globals.
--
-- The file is written by the bridge's agent on this host: a line "bridge-policy 2", a line for each partition that has
-- shared nodes, and "end <number of lines before it>". Jobs of other partitions are never looked at.

local POLICY_FILE = os.getenv("BRIDGE_POLICY_FILE") or "/var/lib/slurm-bridge/policy"
local MAX_BYTES = 65536
local COMPLAIN_AGAIN_S = 60

-- Slurm's "not set" and "no limit" end the range of 16 and of 32 bits.
local UNSET_16 = 65534
local UNSET_32 = 4294967294

-- "Requested node configuration is not available": not every Slurm names it for plugins, and all have the number.
local UNAVAILABLE = 2014

local OUR_COMMENT = '^{"bridge":{.*}}$'

-- As far into a batch script #SBATCH lines are looked for.
local MAX_SCRIPT_BYTES = 65536

-- --- the policy file ---

local NAMES = { partition = "^[%w._-]+$", pool = "^[%w._+-]+$", borrow_qos = "^[%w._-]+$" }
local NEEDED = { "partition", "pool", "nodes", "max_nodes", "gpus_per_node" }

-- What a line says of a partition, or nil where it makes no sense. Keys that a newer agent writes are passed over.
local function parse_line(line)
  local said = {}
  for word in line:gmatch("%S+") do
    local key, value = word:match("^([%l_]+)=(.+)$")
    if not key then
      return nil
    elseif NAMES[key] then
      said[key] = value:match(NAMES[key])
    elseif value:match("^%d+$") then
      said[key] = tonumber(value)
    end
  end
  for _, key in ipairs(NEEDED) do
    if said[key] == nil then
      return nil
    end
  end
  return said
end

local function parse(text)
  if #text > MAX_BYTES then
    return nil, "is larger than " .. MAX_BYTES .. " bytes"
  end
  local lines = {}
  for line in text:gmatch("([^\n]*)\n") do
    lines[#lines + 1] = line
  end
  if text:sub(-1) ~= "\n" or lines[#lines] ~= "end " .. (#lines - 1) then
    return nil, "is not whole"
  end
  if lines[1] ~= "bridge-policy 2" then
    return nil, "is of a format that this plugin does not know"
  end
  local partitions = {}
  for at = 2, #lines - 1 do
    local said = parse_line(lines[at])
    if not said then
      return nil, "makes no sense in line " .. at
    end
    partitions[said.partition] = said
  end
  return partitions
end

local function read_policy()
  local file, problem = io.open(POLICY_FILE, "rb")
  if not file then
    return nil, "cannot be opened: " .. tostring(problem)
  end
  local text = file:read(MAX_BYTES + 1)
  file:close()
  if not text then
    return nil, "is empty or cannot be read"
  end
  return parse(text)
end

local policy, policy_read_at, complained_at

local function complain(words)
  local now = os.time()
  if not complained_at or math.abs(now - complained_at) >= COMPLAIN_AGAIN_S then
    complained_at = now
    slurm.log_error("bridge: %s", words)
  end
end

-- The partitions of the file, or nil: then every job goes through.
local function current_policy()
  local now = os.time()
  if policy_read_at ~= now then
    local problem
    policy, problem = read_policy()
    policy_read_at = now
    if not policy then
      complain(POLICY_FILE .. " " .. problem .. "; jobs are not checked")
    end
  end
  return policy
end

-- --- what a job asks for ---

local function number(value, unset_from)
  value = tonumber(value)
  if value and value >= 0 and value < unset_from then
    return value
  end
  return nil
end

-- GPUs in a text such as "gres/gpu:h100:8,gres/nvme:1" or "gpu=2".
local function gpus_in(text)
  local gpus = 0
  for entry in (type(text) == "string" and text or ""):gmatch("[^,]+") do
    local rest = entry:match("^gres[/:]gpu(.*)$") or entry:match("^gpu(.*)$")
    if rest and (rest == "" or rest:match("^[:=]")) then
      gpus = gpus + (tonumber(rest:match("[:=](%d+)$")) or 1)
    end
  end
  return gpus
end

-- What the job needs in the partition, at least: whole nodes, GPUs on one of them, and GPUs on each if they are spread
-- evenly. Only what is certain counts, so that a job which Slurm could place in some way is never refused.
local function least(job, gpus_per_node)
  local tasks = number(job.num_tasks, UNSET_32) or 0
  local tasks_per_node = number(job.ntasks_per_node, UNSET_16) or 0
  local sockets = number(job.sockets_per_node, UNSET_16) or 0
  local max_nodes = number(job.max_nodes, UNSET_32) or 0
  local per_task = gpus_in(job.tres_per_task)
  local in_all = math.max(gpus_in(job.tres_per_job), per_task * tasks)
  local on_node = math.max(gpus_in(job.tres_per_node), gpus_in(job.tres_per_socket) * math.max(sockets, 1), per_task)
  local nodes = math.max(number(job.min_nodes, UNSET_32) or 0, 1)
  if tasks_per_node > 0 then
    nodes = math.max(nodes, math.ceil(tasks / tasks_per_node))
  end
  if gpus_per_node > 0 then
    nodes = math.max(nodes, math.ceil(in_all / gpus_per_node))
  end
  if max_nodes > 0 then
    on_node = math.max(on_node, math.ceil(in_all / max_nodes))
  end
  return nodes, on_node, math.max(on_node, math.ceil(in_all / nodes))
end

-- Nodes of the partition that the bridge does not share are always Slurm's.
local function dedicated_nodes(shared, part_rec)
  local total = part_rec and number(part_rec.total_nodes, UNSET_32) or 0
  return math.max(total - shared.nodes, 0)
end

-- Why the job can never run in the partition, or nil.
local function obstacle(job, partition, shared, part_rec)
  local nodes, gpus = least(job, shared.gpus_per_node)
  if gpus > shared.gpus_per_node then
    return string.format(
      "This job asks for %d GPUs on a node, and the nodes of partition %s have %d each: ask for at most "
        .. "--gpus-per-node=%d, and for more nodes.",
      gpus, partition, shared.gpus_per_node, shared.gpus_per_node)
  end
  local dedicated = dedicated_nodes(shared, part_rec)
  local has, most = dedicated + shared.nodes, dedicated + shared.max_nodes
  if nodes <= most then
    return nil
  elseif most == has then
    return string.format("This job needs %d nodes, and partition %s has %d: ask for at most --nodes=%d.",
      nodes, partition, has, most)
  end
  return string.format(
    "This job needs %d nodes, and Slurm can get at most %d of the %d in partition %s, as it shares pool %s with "
      .. "Kubernetes: ask for at most --nodes=%d.",
    nodes, most, has, partition, shared.pool, most)
end

local function about(seconds)
  if seconds < 90 then
    return string.format("%d s", math.ceil(seconds))
  elseif seconds < 5400 then
    return string.format("%d min", math.ceil(seconds / 60))
  end
  return string.format("%d h", math.ceil(seconds / 3600))
end

-- What a job must wait for that needs more nodes than Slurm owns now, or nil. How long others compute is not known here.
local function wait_for(job, partition, shared, part_rec)
  local dedicated = dedicated_nodes(shared, part_rec)
  local nodes, has = least(job, shared.gpus_per_node), dedicated + (shared.owned or shared.nodes)
  if shared.warn == 0 or nodes <= has then
    return nil
  end
  local more = nodes - has
  return string.format(
    "This job needs %d nodes, and Slurm has %d of the %d in partition %s now, as the others are lent to Kubernetes: it "
      .. "waits until %d more %s back. %s",
    nodes, has, dedicated + shared.nodes, partition, more, more == 1 and "is" or "are",
    shared.reclaim_s and "Lately that took about " .. about(shared.reclaim_s) .. " once they were asked for."
      or "How long that takes was not measured yet.")
end

-- --- what a job says of itself ---

local SIGNALS = {
  ["1"] = "HUP", ["2"] = "INT", ["3"] = "QUIT", ["10"] = "USR1", ["12"] = "USR2", ["14"] = "ALRM", ["15"] = "TERM",
  ["18"] = "CONT", ["23"] = "URG",
}
for _, name in pairs({ "HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "URG" }) do
  SIGNALS[name] = name
end

-- sbatch's [B:]SIGNAL[@SECONDS], as the bridge spells it, and the seconds. sbatch means the steps without "B:".
local function signal_of(text)
  local flags, name, seconds = text:match("^([RB]*):?(%w+)@?(%d*)$")
  name = name and SIGNALS[(name:upper():gsub("^SIG", ""))]
  if not name then
    return nil
  end
  return (flags:find("B") and "B:" or "S:") .. name, tonumber(seconds) or 60
end

-- The --signal of the script's own #SBATCH lines: what was given on the command line is not shown to plugins.
local function signal_in(script)
  local found
  for line in (type(script) == "string" and script:sub(1, MAX_SCRIPT_BYTES) or ""):gmatch("[^\n]+") do
    if line:match("^%s*[^#%s]") then
      break
    end
    found = line:match("^#SBATCH%s.*%-%-signal[=%s]+(%S+)") or found
  end
  if found then
    return signal_of(found)
  end
end

local function seconds(text)
  return tonumber(text:match("^%d+$") and #text <= 7 and text or nil)
end

local WORDS = {
  checkpoint = seconds,
  grace = seconds,
  saved = function(text) return tonumber(text:match("^%d+%.?%d*$")) end,
  signal = function(text)
    local target, name = text:match("^([BS]?:?)(%w+)$")
    if target ~= "B:" and target ~= "S:" then
      target, name = "", text
    end
    name = SIGNALS[(name:upper():gsub("^SIG", ""))]
    return name and target .. name
  end,
  borrow = function(text) return (text == "yes" or text == "no") and text or nil end,
}

-- The words after "bridge:" in a comment, and the first one that makes no sense.
local function wishes_in(comment)
  local wishes = {}
  local words = (" " .. (comment or "")):match("[^%w_]bridge:(.*)$")
  for word in (words or ""):gmatch("%S+") do
    local key, value = word:match("^(%a+)=(%S+)$")
    if not key then
      return wishes, next(wishes) == nil and word or nil
    end
    wishes[key] = WORDS[key] and WORDS[key](value)
    if wishes[key] == nil then
      return wishes, word
    end
  end
  return wishes
end

-- All wishes of a new job: the comment counts before the script.
local function wishes_of(job)
  local wishes, odd = wishes_in(job.comment)
  local signal, before_end = signal_in(job.script)
  if signal and not wishes.signal then
    wishes.signal = signal
    wishes.grace = wishes.grace or before_end
  end
  return wishes, odd
end

-- --- which partition ---

local function default_partition(part_list)
  for name, part in pairs(part_list or {}) do
    if part.flag_default == 1 then
      return name
    end
  end
  return nil
end

-- One obstacle when the job can run in none of its partitions, the first shared partition among them, and whether it is
-- the only one.
local function judge(job, part_list)
  local partitions = current_policy()
  local names = job.partition or default_partition(part_list)
  if not partitions or not names then
    return nil, nil
  end
  local first_obstacle, first_shared
  local possible, count = false, 0
  for name in names:gmatch("[^,]+") do
    local shared = partitions[name]
    local found = shared and obstacle(job, name, shared, part_list and part_list[name])
    first_shared = first_shared or (shared and name)
    first_obstacle = first_obstacle or found
    possible = possible or not found
    count = count + 1
  end
  return (not possible) and first_obstacle or nil, first_shared, count == 1
end

-- --- what is done to a job ---

-- A number that the job left open is set where the policy has a default. Slurms that lack the field show nil.
local function default_to(job, field, value, unset)
  local now = tonumber(job[field])
  if value and now and (now == unset or now == 0) then
    job[field] = value
  end
end

local function set_topology(job, shared)
  local nodes = least(job, shared.gpus_per_node)
  if nodes < 2 then
    return
  end
  if shared.switches and (number(job.req_switch, UNSET_32) or 0) == 0 then
    default_to(job, "wait4switch", shared.switches_wait_s, UNSET_32)
    default_to(job, "req_switch", shared.switches, UNSET_32)
  end
  if shared.segment_nodes and nodes % shared.segment_nodes == 0 then
    default_to(job, "segment_size", shared.segment_nodes, UNSET_16)
  end
end

-- A job that may be borrowed against can be put back into the queue, and pays less where the policy says so.
local function set_borrowing(job, shared, wishes)
  if wishes.borrow == "no" then
    job.requeue = 0
  elseif wishes.borrow == "yes" then
    job.requeue = 1
    if shared.borrow_qos and (job.qos or "") == "" then
      job.qos = shared.borrow_qos
    end
  end
end

local function tag(job, shared, wishes)
  local comment = job.admin_comment
  if comment and comment ~= "" and not comment:match(OUR_COMMENT) then
    return -- somebody else's
  end
  local nodes, _, gpus = least(job, shared.gpus_per_node)
  local said = { string.format('"pool":"%s","nodes":%d,"gpus_per_node":%d', shared.pool, nodes, gpus) }
  local function say(form, value)
    if value then
      said[#said + 1] = string.format(form, value)
    end
  end
  say('"checkpoint_s":%d', wishes.checkpoint)
  say('"grace_s":%d', wishes.grace)
  say('"signal":"%s"', wishes.signal)
  local requeue = tonumber(job.requeue)
  say('"requeue":%s', (requeue == 1 and "true") or (requeue == 0 and "false"))
  job.admin_comment = '{"bridge":{' .. table.concat(said, ",") .. "}}"
end

local function tell(words)
  if words then
    slurm.log_user("%s", words)
  end
end

local function tell_odd(word)
  tell(word and "The bridge does not understand " .. word .. " in the comment of this job: it knows checkpoint=SECONDS, "
    .. "grace=SECONDS, signal=NAME, borrow=yes and borrow=no.")
end

local function refuse(words)
  slurm.log_user("%s", words)
  return slurm.ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE or UNAVAILABLE
end

-- The job as it will be after a change: what the change does not name stays as it is.
local CHECKED = {
  "partition", "min_nodes", "max_nodes", "num_tasks", "ntasks_per_node", "sockets_per_node",
  "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task",
}
local UNSET_OF = { min_nodes = UNSET_32, max_nodes = UNSET_32, num_tasks = UNSET_32,
  ntasks_per_node = UNSET_16, sockets_per_node = UNSET_16 }

local function changed_job(job_desc, job_rec)
  local job, changes = {}, false
  for _, name in ipairs(CHECKED) do
    local value = job_desc[name]
    if UNSET_OF[name] then
      value = number(value, UNSET_OF[name])
    end
    changes = changes or value ~= nil
    if value == nil then
      value = job_rec[name]
    end
    job[name] = value
  end
  return changes and job or nil
end

-- --- what slurmctld calls ---

-- Runs `check`; an error in it is logged, and the job goes through.
local function fail_open(check)
  local fine, result = pcall(check)
  if fine then
    return result
  end
  pcall(complain, "job_submit.lua failed, jobs are not checked: " .. tostring(result))
  return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  return fail_open(function()
    local impossible, partition, alone = judge(job_desc, part_list)
    if impossible then
      return refuse(impossible)
    end
    local shared = partition and policy[partition]
    if not shared then
      return slurm.SUCCESS
    end
    local wishes, odd = wishes_of(job_desc)
    set_borrowing(job_desc, shared, wishes)
    set_topology(job_desc, shared)
    tag(job_desc, shared, wishes)
    tell_odd(odd)
    tell(alone and wait_for(job_desc, partition, shared, part_list and part_list[partition]))
    return slurm.SUCCESS
  end)
end

-- The tag is not renewed: Slurm lets operators only change an admin_comment, and would refuse the user's whole change.
-- The bridge reads a changed comment itself.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return fail_open(function()
    local job = changed_job(job_desc, job_rec)
    local impossible = job and judge(job, part_list)
    if impossible then
      return refuse(impossible)
    end
    local said = job_desc.comment
    if not said or said == job_rec.comment then
      return slurm.SUCCESS
    end
    local partitions, wishes, odd = current_policy(), wishes_in(said)
    local changed = wishes.borrow ~= wishes_in(job_rec.comment).borrow
    for name in (job_desc.partition or job_rec.partition or ""):gmatch("[^,]+") do
      if partitions and partitions[name] then
        if wishes.borrow and changed then
          job_desc.requeue = wishes.borrow == "yes" and 1 or 0
        end
        tell_odd(odd)
        break
      end
    end
    return slurm.SUCCESS
  end)
end

return slurm.SUCCESS
