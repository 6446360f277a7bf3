
-- Admits a batch of asks, in order, at one instant. Each key is read once and written once.
--
-- plan   number of lines; of each line: key, notes, kind, shape, attempts, slice | rate, per, horizon, window,
--        capacity, period, life, modulus. A line is a key and the quota it is judged by; notes is 0 if they are
--        not apart, or not needed. If any limit climbs, what warm.lua says.
--        number of asks; of each ask either a run: times, cost, line, and whether its quota is that of the run before, if
--        each has a line of its own (that many asks of one check, alike)
--        or 0, peek, checks, whether it has an id, and of each check: line, cost, enforced, digits of the id (which text)
-- reply  of a run: granted, used, retry after, reset after, recorded under, first number, bound
--        of a check: outcome, used, retry after, reset after, recorded under, number, bound
--        (outcome: 0 charged, 1 fits, 2 denied, 3 impossible; bound: 0 if retry after is exact, 1 if it is a lower bound)
--        or the integer 1: nothing was decided, because more has left than one call may sum up (see head.lua)

local lines, states = {}, {}
for i = 1, take('<d') do
  local key, notes, kind, shape, attempts, a, per, horizon, window, capacity, period, life, modulus =
    take('<ddddddddddddd')
  lines[i] = {
    key = key, notes = notes, kind = kind, shape = ARGV[shape], window = window, capacity = capacity,
    attempts = attempts == 1, slice = a, rate = a, per = per, horizon = horizon, period = period, life = life,
    modulus = modulus,
  }
end

if warm then warm.read(lines) end

-- The state of a line's key. Another algorithm or window for the same key starts it anew.
local function state(line)
  local held = states[line.key]
  if held then
    if held.state.shape == line.shape and held.line.kind == line.kind then return held.state end
    kinds[held.line.kind].save(held.state, held.line)
  end
  local loaded = kinds[line.kind].load(line)
  states[line.key] = { state = loaded, line = line }
  return loaded
end

local function wait(kind, s, line, cost)
  if line.climb then return warm.wait(kind, s, line, cost) end
  return kind.wait(s, line, cost)
end

-- What is not ours is found before anything is written. A key that is counted in two ways is read when its turn comes:
-- the first changes what the second finds.
local ways = {}
for i = 1, #lines do
  local key = lines[i].key
  ways[key] = (ways[key] or 0) + 1
end
local again = false
for i = 1, #lines do
  local line = lines[i]
  if not answered[i] and ways[line.key] == 1 then
    state(line)
  elseif not answered[i] then
    kinds[line.kind].load(line)
    again = true
  end
end
if unfinished then return 1 end
-- What was loaded only to look is loaded again.
if again then trims = TRIMS end

local reply = { struct.pack('<d', now) }

local function answer(outcome, s, retry, reset, date, place, bound)
  -- What attempts must still forget does not count.
  local used = s.most and s.used > s.most and s.most or s.used
  reply[#reply + 1] = struct.pack('<ddddddd', outcome, used, retry, reset, date, place, bound and 1 or 0)
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
  local date, place, retry, bound = 0, 0, 0, nil
  if granted > 0 then date, place = record(kind, s, line, cost, granted) end
  if granted < times then
    if line.attempts then record(kind, s, line, cost, times - granted) end
    retry, bound = kind.wait(s, line, cost)
  end
  answer(granted, s, retry, kind.reset(s, line), date, place, bound)
end

local function ask(peek, checks, named)
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
      if check.id then check.at, check.k = known(s, line, check.id, check.digits) end
      if not check.at then check.outcome = (s.used + cost <= line.capacity or line.climb and s.used == 0) and 1 or 2 end
    end
    if enforced == 1 and (check.outcome or 0) >= 2 and not denier then denier = i end
    all[i] = check
  end
  for i = 1, checks do
    local check = all[i]
    local line, cost, s, outcome = check.line, check.cost, check.state, check.outcome
    local kind = kinds[line.kind]
    local date, place = check.at or 0, check.k or 0
    local admitted = peek == 0 and not denier
    local counted = cost > 0 and (admitted or peek == 0 and line.attempts and denier and i <= denier)
    if not outcome then
      outcome = 0
    elseif outcome == 1 and counted then
      date, place = record(kind, s, line, cost, 1)
      if admitted then
        outcome = 0
        if line.climb then warm.admitted(line, s) end
        if check.id then place = remember(s, check.id, date) end
      end
    elseif outcome == 2 and counted and line.attempts then
      record(kind, s, line, cost, 1)
    end
    local retry, bound = outcome == 3 and line.horizon or 0, nil
    if outcome == 1 or outcome == 2 then retry, bound = wait(kind, s, line, cost) end
    answer(outcome, s, retry, kind.reset(s, line), date, place, bound)
  end
end

for i = 1, take('<d') do
  local times, a, b, c = take('<dddd')
  if answered[i] then
    reply[#reply + 1] = answered[i]
  elseif times > 0 then
    run(times, lines[b], a)
  else
    ask(a, b, c)
  end
end

-- What starts anew is removed before anything is counted.
for _, held in pairs(states) do
  local s = held.state
  local writes = s.count > 0 or s.clipped or (s.gone or 0) > 0
  if writes and s.replace and not drop_key(s.key) then return 1 end
  if writes and s.emptied and not kinds[2].empty(s) then return 1 end
  if s.marks and not s.has_notes and s.notes ~= s.key and not drop_key(s.notes) then return 1 end
end
for _, held in pairs(states) do kinds[held.line.kind].save(held.state, held.line) end
if warm then
  warm.save()
  for i = 1, #lines do
    if lines[i].climb then reply[#reply + 1] = struct.pack('<d', lines[i].capacity) end
  end
end
return table.concat(reply)
