
-- Evaluates a batch of requests, in order, at one instant. Each key is read once and written once.
--
-- plan   `Batch`; each `Line`; each `WarmUpLine` (see warm.lua); for each request `RequestHead`, and then `Run`, or
--        `Request` and each `RequestCheck`
-- reply  for each run `RunHead`, and then `RunReply` or `GrantedRun`; for each check of any other request `CheckReply`;
--        instead of all this, the integer 1 if nothing was decided, because more entries have expired than one call may
--        sum up (see prelude.lua)

local lines, states = {}, {}
local line_count, warm_up_count, request_count = Batch.take()
for i = 1, line_count do lines[i] = take_line() end

if warm then warm.read(lines, warm_up_count) end

-- Returns the state of a line's key. If the line has another algorithm or window than the stored count, the count
-- starts anew.
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

-- Loads all keys first, so that foreign data is found before anything is written. A key with two quotas is loaded again
-- when a request needs it, because evaluating the first quota changes the data that the second quota loads.
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
-- Keys that were loaded only to find foreign data are loaded again later, with the full budget for removals.
if reload then trims = TRIMS end

local reply = { ReplyHead.pack({ at = now }) }

-- Returns the permits in use, without the old attempts that `keep_newest` has left for later calls to forget.
local function used_of(s)
  return s.most and s.used > s.most and s.most or s.used
end

-- Records `times` admissions of `cost` permits. If the quota counts attempts, keeps only the newest permits, as many as
-- fit into the limit.
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
  reply[#reply + 1] = RunHead.RunReply.pack({
    form = RunForm.Full, granted = granted, used = used_of(s), retry_after = retry, reset_after = kind.reset(s, line),
    recorded_at = date, first_seq = ordinal, lower_bound = bound and 1 or 0,
  })
end

local function evaluate()
  local is_peek, check_count, has_id = Request.take()
  local all, denier = {}, nil
  for i = 1, check_count do
    local check = RequestCheck.take_table()
    local line, cost = lines[check.line], check.cost
    local s = state(line)
    check.line, check.state = line, s
    if has_id == 1 then
      check.digits = ARGV[check.digits]
      check.id = 'id:' .. check.digits
    end
    if line.climb then warm.set_limit(line, s) end
    if cost > (line.full or line.capacity) then
      check.outcome = OutcomeCode.Impossible
    else
      if check.id then check.at, check.k = find_admission(s, line, check.id, check.digits) end
      if not check.at then
        local fits = s.used + cost <= line.capacity or line.climb and s.used == 0
        check.outcome = fits and OutcomeCode.Fits or OutcomeCode.Denied
      end
    end
    local denies = check.outcome == OutcomeCode.Denied or check.outcome == OutcomeCode.Impossible
    if check.enforced == 1 and denies and not denier then denier = i end
    all[i] = check
  end
  for i = 1, check_count do
    local check = all[i]
    local line, cost, s, outcome = check.line, check.cost, check.state, check.outcome
    local kind = kinds[line.kind]
    local date, ordinal = check.at or 0, check.k or 0
    local admitted = is_peek == 0 and not denier
    local counted = cost > 0 and (admitted or is_peek == 0 and line.attempts and denier and i <= denier)
    if not outcome then
      outcome = OutcomeCode.Charged
    elseif outcome == OutcomeCode.Fits and counted then
      date, ordinal = record(kind, s, line, cost, 1)
      if admitted then
        outcome = OutcomeCode.Charged
        if line.climb then warm.admitted(line, s) end
        if check.id then ordinal = remember(s, check.id, date) end
      end
    elseif outcome == OutcomeCode.Denied and counted and line.attempts then
      record(kind, s, line, cost, 1)
    end
    local retry, bound = outcome == OutcomeCode.Impossible and line.horizon or 0, nil
    if outcome == OutcomeCode.Fits or outcome == OutcomeCode.Denied then retry, bound = wait(kind, s, line, cost) end
    reply[#reply + 1] = CheckReply.pack({
      outcome = outcome, used = used_of(s), retry_after = retry, reset_after = kind.reset(s, line), recorded_at = date,
      seq = ordinal, lower_bound = bound and 1 or 0,
    })
  end
end

for i = 1, request_count do
  local form = RequestHead.take()
  if form == RequestForm.Run then
    local times, cost, line = Run.take()
    if early_replies[i] then reply[#reply + 1] = early_replies[i] else run(times, lines[line], cost) end
  else
    evaluate()
  end
end

-- Counts that start anew are removed before anything is written, because a removal may end the call: see `is_here`.
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
    if lines[i].climb then reply[#reply + 1] = WarmLimit.pack({ limit = lines[i].capacity }) end
  end
end
return table.concat(reply)
