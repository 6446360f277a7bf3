
-- Evaluates a batch of requests, in order, at one instant. Each key is read once and written once.
--
-- plan   number of lines; for each line: key, notes, kind, quota tag, attempts, slice | rate, per, horizon, window,
--        capacity, period, ttl, modulus. A line is a key and the quota it is evaluated by; notes is 0 if the notes are
--        not in a separate key, or not needed. If any limit warms up, the plan of warm.lua follows.
--        number of requests; each is either a run: times, cost, line, and whether its quota is that of the run before, if
--        each run has a line of its own (that many equal requests of one check)
--        or 0, peek, checks, whether it has an id, and for each check: line, cost, enforced, digits of the id (index in
--        ARGV)
-- reply  for a run: granted, used, retry after, reset after, recorded under, first number, bound
--        for a check: outcome, used, retry after, reset after, recorded under, number, bound
--        (outcome: 0 charged, 1 fits, 2 denied, 3 impossible; bound: 0 if retry after is exact, 1 if it is a lower bound)
--        or the integer 1: nothing was decided, because more entries have expired than one call may sum up (see
--        prelude.lua)

local lines, states = {}, {}
for i = 1, take('<d') do
  local key, notes, kind, quota_tag, attempts, a, per, horizon, window, capacity, period, ttl, modulus =
    take('<ddddddddddddd')
  lines[i] = {
    key = key, notes = notes, kind = kind, quota_tag = ARGV[quota_tag], window = window, capacity = capacity,
    attempts = attempts == 1, slice = a, rate = a, per = per, horizon = horizon, period = period, ttl = ttl,
    modulus = modulus,
  }
end

if warm then warm.read(lines) end

-- Returns the state of a line's key. Another algorithm or window for the same key starts the count anew.
local function state(line)
  local cached = states[line.key]
  if cached then
    if cached.state.quota_tag == line.quota_tag and cached.line.kind == line.kind then return cached.state end
    kinds[cached.line.kind].save(cached.state, cached.line)
  end
  local loaded = kinds[line.kind].load(line)
  states[line.key] = { state = loaded, line = line }
  return loaded
end

local function wait(kind, s, line, cost)
  if line.climb then return warm.wait(kind, s, line, cost) end
  return kind.wait(s, line, cost)
end

-- Loads all keys first, so that foreign data is found before anything is written. A key with two quotas is loaded
-- again when its turn comes, because the first quota changes what the second finds.
local lines_of_key = {}
for i = 1, #lines do
  local key = lines[i].key
  lines_of_key[key] = (lines_of_key[key] or 0) + 1
end
local reload = false
for i = 1, #lines do
  local line = lines[i]
  if not early_replies[i] and lines_of_key[line.key] == 1 then
    state(line)
  elseif not early_replies[i] then
    kinds[line.kind].load(line)
    reload = true
  end
end
if unfinished then return 1 end
-- Keys that were loaded only as a check are loaded again.
if reload then trims = TRIMS end

local reply = { struct.pack('<d', now) }

local function answer(outcome, s, retry, reset, date, ordinal, bound)
  -- Attempts that later calls must still forget do not count.
  local used = s.most and s.used > s.most and s.most or s.used
  reply[#reply + 1] = struct.pack('<ddddddd', outcome, used, retry, reset, date, ordinal, bound and 1 or 0)
end

-- Counts `cost`, `times` over; of attempts only the newest that fit are kept.
local function record(kind, s, line, cost, times)
  if line.attempts then
    local most = line.full or line.capacity
    kind.keep_newest(s, line, most - cost)
    if s.short then s.most = most end
  end
  return kind.record(s, line, cost, times)
end

local function run(times, line, cost)
  local kind, s = kinds[line.kind], state(line)
  local granted = (line.capacity - s.used - fmod(line.capacity - s.used, cost)) / cost
  if granted > times then granted = times elseif granted < 0 then granted = 0 end
  local date, ordinal, retry, bound = 0, 0, 0, nil
  if granted > 0 then date, ordinal = record(kind, s, line, cost, granted) end
  if granted < times then
    if line.attempts then record(kind, s, line, cost, times - granted) end
    retry, bound = kind.wait(s, line, cost)
  end
  answer(granted, s, retry, kind.reset(s, line), date, ordinal, bound)
end

local function evaluate(peek, checks, named)
  local all, denier = {}, nil
  for i = 1, checks do
    local number, cost, enforced, digits = take('<dddd')
    local line = lines[number]
    local s = state(line)
    local check = { line = line, cost = cost, state = s }
    if named > 0 then
      check.digits = ARGV[digits]
      check.id = 'id:' .. check.digits
    end
    if line.climb then warm.set_limit(line, s) end
    if cost > (line.full or line.capacity) then
      check.outcome = 3
    else
      if check.id then check.at, check.k = find_admission(s, line, check.id, check.digits) end
      if not check.at then check.outcome = (s.used + cost <= line.capacity or line.climb and s.used == 0) and 1 or 2 end
    end
    if enforced == 1 and (check.outcome or 0) >= 2 and not denier then denier = i end
    all[i] = check
  end
  for i = 1, checks do
    local check = all[i]
    local line, cost, s, outcome = check.line, check.cost, check.state, check.outcome
    local kind = kinds[line.kind]
    local date, ordinal = check.at or 0, check.k or 0
    local admitted = peek == 0 and not denier
    local counted = cost > 0 and (admitted or peek == 0 and line.attempts and denier and i <= denier)
    if not outcome then
      outcome = 0
    elseif outcome == 1 and counted then
      date, ordinal = record(kind, s, line, cost, 1)
      if admitted then
        outcome = 0
        if line.climb then warm.admitted(line, s) end
        if check.id then ordinal = remember(s, check.id, date) end
      end
    elseif outcome == 2 and counted and line.attempts then
      record(kind, s, line, cost, 1)
    end
    local retry, bound = outcome == 3 and line.horizon or 0, nil
    if outcome == 1 or outcome == 2 then retry, bound = wait(kind, s, line, cost) end
    answer(outcome, s, retry, kind.reset(s, line), date, ordinal, bound)
  end
end

for i = 1, take('<d') do
  local times, a, b, c = take('<dddd')
  if early_replies[i] then
    reply[#reply + 1] = early_replies[i]
  elseif times > 0 then
    run(times, lines[b], a)
  else
    evaluate(a, b, c)
  end
end

-- Counts that start anew are removed before anything is written.
for _, cached in pairs(states) do
  local s = cached.state
  local writes = s.count > 0 or s.clipped or (s.gone or 0) > 0
  if writes and s.replace and not drop_key(s.key) then return 1 end
  if writes and s.emptied and not kinds[2].empty(s) then return 1 end
  if s.marks and not s.has_notes and s.notes ~= s.key and not drop_key(s.notes) then return 1 end
end
for _, cached in pairs(states) do kinds[cached.line.kind].save(cached.state, cached.line) end
if warm then
  warm.save()
  for i = 1, #lines do
    if lines[i].climb then reply[#reply + 1] = struct.pack('<d', lines[i].capacity) end
  end
end
return table.concat(reply)
