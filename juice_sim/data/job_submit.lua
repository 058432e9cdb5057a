--[[
Gives each job that asks for GPUs of Juice (--juice-pool) the Slurm licenses of what it asks for, so that it waits in
the queue with reason Licenses until they are free. To be installed as job_submit.lua beside slurm.conf, with
JobSubmitPlugins=lua; `juice-sim licenses sync` keeps the licenses, and the table below, at what the controller has.

A job that this script does not understand gets no license and is submitted as it is: the prolog decides, as without it.
So do jobs that choose agents by label or taint, and those that ask for more than any agent of the pool has.
]]

local TABLE = "@TABLE@"
local LENGTH = 65536

-- GiB and bytes exceed what a Lua number counts exactly only beyond 2^53, which no GPU has.
local GIB = 1073741824

local function pools()
    local found = {}
    local file = io.open(TABLE, "r")
    if file == nil then
        return found
    end
    for line in file:lines() do
        local fields = {}
        for field in (line .. "\t"):gmatch("([^\t]*)\t") do
            fields[#fields + 1] = field
        end
        if #fields == 7 and line:sub(1, 1) ~= "#" then
            local pool = {
                license = fields[3],
                most_gpus = tonumber(fields[4]),
                whole_gib = tonumber(fields[5]),
                largest_gib = tonumber(fields[6]),
                most_gib = tonumber(fields[7]),
            }
            found[fields[1]] = pool
            found[fields[2]] = pool
        end
    end
    file:close()
    return found
end

-- The entries of spank_job_env are strings NAME=value; they come from the user.
local function asked(job)
    local values = {}
    local environment = job.spank_job_env
    if environment == nil then
        return values
    end
    for i = 0, (job.spank_job_env_size or 0) - 1 do
        local entry = environment[i]
        if type(entry) == "string" and #entry < LENGTH then
            local name, value = entry:match("^(JUICE_[A-Z_]+)=(.*)$")
            if name then
                values[name] = value
            end
        end
    end
    return values
end

local function needed(values)
    local pool = pools()[values.JUICE_POOL]
    if pool == nil or values.JUICE_MATCH_LABELS or values.JUICE_TOLERATES then
        return nil
    end
    local gpus = tonumber((values.JUICE_GPU_COUNT or "1"):match("^%d+$"))
    if gpus == nil or gpus < 1 or gpus > pool.most_gpus then
        return nil
    end
    if values.JUICE_VRAM then
        local bytes = tonumber(values.JUICE_VRAM:match("^%d+$"))
        local gib = bytes and math.ceil(bytes / GIB)
        if gpus ~= 1 or gib == nil or gib < 1 or gib > pool.most_gib then
            return nil
        end
        return string.format("%s_vram_gib:%d,%s_fit_%d:1", pool.license, math.min(gib, pool.largest_gib), pool.license, gib)
    end
    local text = string.format("%s:%d,%s_vram_gib:%d", pool.license, gpus, pool.license, gpus * pool.whole_gib)
    if gpus > 1 then
        text = text .. string.format(",%s_x%d:1", pool.license, gpus)
    end
    return text
end

-- What the user wrote with --licenses stays, but for ours: a job holds exactly what it needs of them.
local function others(licenses)
    local kept = {}
    for word in (licenses or ""):gmatch("[^,;]+") do
        if not word:match("^%s*juice_") then
            kept[#kept + 1] = word
        end
    end
    return kept
end

function slurm_job_submit(job, partitions, uid)
    local values = asked(job)
    if not values.JUICE_POOL then
        return slurm.SUCCESS
    end
    local fine, licenses = pcall(needed, values)
    if fine and licenses then
        local all = others(job.licenses)
        all[#all + 1] = licenses
        job.licenses = table.concat(all, ",")
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
