-- job_submit/lua plugin of the bridge: a job that could never run is told so when it is submitted, in plain words.
--
-- Runs inside slurmctld, under its locks: it reads one small local file (at most once a second), and there is no network
-- and no other program in it. Whatever goes wrong is logged and the job goes through as it is, because an error that
-- escapes would stop every submission of the cluster from Slurm 26.05 on. It never touches assoc_qos, whose reading
-- crashes slurmctld before 25.05.3. Works with every Lua from 5.1, which Debian's Slurm has.
--
-- The file is written by the bridge's agent on this host: a line "bridge-policy 1", a line for each partition that has
-- shared nodes, and "end <number of lines before it>". Jobs of other partitions are never looked at.

local POLICY_FILE = os.getenv("BRIDGE_POLICY_FILE") or "/var/lib/slurm-bridge/policy"
local MAX_BYTES = 65536
local COMPLAIN_AGAIN_S = 60

-- Slurm's "not set" and "no limit" end the range of 16 and of 32 bits.
local UNSET_16 = 65534
local UNSET_32 = 4294967294

local OUR_COMMENT = '^{"bridge":{.*}}$'

-- --- the policy file ---

local PARTITION_LINE = "^partition=([%w._-]+) pool=([%w._+-]+) nodes=(%d+) max_nodes=(%d+) gpus_per_node=(%d+)$"

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
  if lines[1] ~= "bridge-policy 1" then
    return nil, "is of a format that this plugin does not know"
  end
  local partitions = {}
  for at = 2, #lines - 1 do
    local partition, pool, nodes, max_nodes, gpus = lines[at]:match(PARTITION_LINE)
    if not partition then
      return nil, "makes no sense in line " .. at
    end
    partitions[partition] = {
      pool = pool,
      nodes = tonumber(nodes),
      max_nodes = tonumber(max_nodes),
      gpus_per_node = tonumber(gpus),
    }
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

-- Why the job can never run in the partition, or nil.
local function obstacle(job, partition, shared, part_rec)
  local nodes, gpus = least(job, shared.gpus_per_node)
  if gpus > shared.gpus_per_node then
    return string.format(
      "This job asks for %d GPUs on a node, and the nodes of partition %s have %d each: ask for at most "
        .. "--gpus-per-node=%d, and for more nodes.",
      gpus, partition, shared.gpus_per_node, shared.gpus_per_node)
  end
  -- Nodes of the partition that the bridge does not share are always Slurm's.
  local total = part_rec and number(part_rec.total_nodes, UNSET_32) or 0
  local dedicated = math.max(total - shared.nodes, 0)
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

-- --- which partition ---

local function default_partition(part_list)
  for name, part in pairs(part_list or {}) do
    if part.flag_default == 1 then
      return name
    end
  end
  return nil
end

-- One obstacle when the job can run in none of its partitions, and the first shared partition among them.
local function judge(job, part_list)
  local partitions = current_policy()
  local names = job.partition or default_partition(part_list)
  if not partitions or not names then
    return nil, nil
  end
  local first_obstacle, first_shared
  local possible = false
  for name in names:gmatch("[^,]+") do
    local shared = partitions[name]
    local found = shared and obstacle(job, name, shared, part_list and part_list[name])
    first_shared = first_shared or (shared and name)
    first_obstacle = first_obstacle or found
    possible = possible or not found
  end
  return (not possible) and first_obstacle or nil, first_shared
end

local function tag(job, partition)
  local comment = job.admin_comment
  if comment and comment ~= "" and not comment:match(OUR_COMMENT) then
    return -- somebody else's
  end
  local shared = policy[partition]
  local nodes, _, gpus = least(job, shared.gpus_per_node)
  job.admin_comment = string.format('{"bridge":{"pool":"%s","nodes":%d,"gpus_per_node":%d}}', shared.pool, nodes, gpus)
end

local function refuse(words)
  slurm.log_user("%s", words)
  return slurm.ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE or slurm.ERROR
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
    local impossible, shared_partition = judge(job_desc, part_list)
    if impossible then
      return refuse(impossible)
    end
    if shared_partition then
      tag(job_desc, shared_partition)
    end
    return slurm.SUCCESS
  end)
end

-- The tag is not renewed: Slurm lets operators only change an admin_comment, and would refuse the user's whole change.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return fail_open(function()
    local job = changed_job(job_desc, job_rec)
    local impossible = job and judge(job, part_list)
    if impossible then
      return refuse(impossible)
    end
    return slurm.SUCCESS
  end)
end

return slurm.SUCCESS
