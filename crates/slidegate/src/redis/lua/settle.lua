
-- Settles admissions, one after another, at one instant.
--
-- plan   min-expire, expire-buffer, channel, number of settlements; of each: key, its notes, log, its notes, instant,
--        cost charged, cost really, seq and name (which text)
--
-- What gives something back is published, so that nobody goes on refusing what fits again. Whoever may not publish is
-- not heard.
-- reply  of each: 0 done, 1 settled before, 2 gone
-- The shape stored with a key says how it counts, so a settlement need not.

local min_expire, buffer, channel, settlements = take('<dddd')

-- A line as `admit.lua` has it, from a shape; what it says of limits does not matter here.
local function line_of(shape, key, notes, kind)
  local algorithm, a, b, c = string.match(shape, '^(%S+) (%d+) ?(%d*) ?(%d*)$')
  a, b, c = tonumber(a), tonumber(b), tonumber(c)
  local line = { key = key, notes = notes, shape = shape, window = a, horizon = a, slice = 0, capacity = MAX_TOTAL }
  if algorithm == 'sliding-window' then line.kind = kind
  elseif algorithm == 'time-slice' then
    line.kind = 1
    line.slice = math.ceil(a / b)
    line.horizon = a + line.slice
  elseif algorithm == 'fixed-window' then line.kind = 3
  elseif algorithm == 'token-bucket' then
    line.kind = 4
    line.rate, line.per, line.capacity = a, b, c
    line.horizon = math.ceil(b * c / a)
  else error('SGFOREIGN') end
  line.life = math.max(min_expire, line.horizon + buffer)
  line.period = math.max(1, line.life - line.horizon - math.floor(buffer / 2))
  line.modulus = modulus_of(line.kind, line.horizon)
  return line
end

local function shape_of(key)
  local found = call('ZRANGEBYSCORE', key, '-inf', 0)
  for i = 1, #found do
    if #found[i] > 1 then return found[i] end
  end
  if found[1] then check_ours(key, found[1]) end
end

local function settle(line, at, from, to, seq)
  local kind = kinds[line.kind]
  local s = kind.load(line)
  if line.kind <= 2 then
    -- What it writes next lies on what is trimmed now.
    kind.save(s, line)
    s.gone, s.clipped = 0, nil
  end
  local ahead = line.kind == 1 and line.slice > 0 and line.slice - 1 or 0
  local outcome = 2
  if at <= s.at + ahead and not kind.past(s, line, at) and not s.fresh then
    local settled = note_name('settled:', line, at, seq)
    if noted(s, settled) == at then
      outcome = 1
    elseif kind.amend(s, line, at, from, to, tonumber(seq)) then
      outcome = 0
      add_note(s, settled, at)
      if to == 0 and #seq > 17 then add_note(s, note_name('void:', line, at, seq), at) end
    end
  end
  if line.kind > 2 then
    kind.save(s, line)
  elseif s.marks then
    write_notes(s, line)
  end
  return outcome
end

local reply = { struct.pack('<d', now) }
for i = 1, settlements do
  local key, notes, log, log_notes, at, from, to, seq, name = take('<ddddddddd')
  local shape = shape_of(KEYS[key])
  local outcome = 2
  if shape then
    outcome = settle(line_of(shape, key, notes, 1), at, from, to, ARGV[seq])
  end
  -- A rule that changed its encoding has left both behind.
  if outcome == 2 then
    local window = kinds[2].window_of(log)
    if window then
      outcome = settle(line_of(format('sliding-window %d', window), log, log_notes, 2), at, from, to, ARGV[seq])
    end
  end
  if outcome == 0 and to < from then redis.pcall('PUBLISH', ARGV[channel], ARGV[name]) end
  reply[i + 1] = struct.pack('<d', outcome)
end
return table.concat(reply)
