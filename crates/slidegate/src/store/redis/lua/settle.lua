
-- Settles admissions, one after another, at one instant.
--
-- plan   min-expire, expire-buffer, channel, number of settlements; of each: key, its notes, log, its notes, instant,
--        cost charged, cost really, seq and name (which text). A cost of 2^52 extends what is held: it counts from now on.
--
-- What gives something back is published, so that nobody goes on denying what fits again. Whoever may not publish is
-- not heard.
-- reply  of each: 0 done, 1 settled before, 2 gone, 3 to be sent again, because more has left than one call may sum up (see
--        head.lua)
-- The shape stored with a key says how it counts, so a settlement need not.

local channel, settlements = take('<dd')

local EXTEND = 2 ^ 52

-- The instant that an admission counts from: where it was extended, that of the last time.
local function counts_from(s, line, at, seq)
  return line.held and noted(s, note_name('moved:', line, at, seq)) or at
end

-- Stands for the place of an admission that a note proves: `amend` does not compare it with the places of its instant.
local PROVEN = 1e18

-- Whether a node wrote back what it had admitted at this instant.
local function is_written_back(s, line, at)
  if line.kind ~= 1 or line.slice > 0 then return (noted(s, 'heal:newest') or 0) >= at end
  for _, name in ipairs(call('ZRANGEBYSCORE', s.key, format('%d', at), format('%d', at), 'LIMIT', '0', '64')) do
    if string.find(name, '-', 1, true) then return true end
  end
  return false
end

-- The place of an admission among those of its instant; nil if it was never made. A number of 19 digits is that of a request
-- with an id, and must be noted; one of 20 digits is that of an admission that a node wrote back.
local function place_of(s, line, at, since, seq)
  if since ~= at then return PROVEN end
  if #seq < 19 then return tonumber(seq) end
  if #seq == 19 then
    local k = tonumber(string.sub(seq, 18))
    local name = 'id:' .. string.sub(seq, 1, 17) .. (k > 0 and '/' .. format('%d', k) or '')
    if noted(s, name) == at then return PROVEN end
  end
  return is_written_back(s, line, at) and PROVEN or nil
end

-- No more is moved than there is, whatever it is said to have cost.
local function extend(s, line, at, since, cost, seq, place)
  if not line.held or cost == 0 then return 2 end
  if since == s.at then return 0 end
  local before = s.used
  if not kinds[1].amend(s, line, since, cost, 0, place) then return 2 end
  add_note(s, note_name('moved:', line, at, seq), (kinds[1].record(s, line, before - s.used, 1)))
  kinds[1].save(s, line)
  s.marks = nil
  return 0
end

local function settle(line, at, from, to, seq)
  local kind = kinds[line.kind]
  local s = kind.load(line)
  if unfinished or s.replace and not drop_key(s.key) then return 3 end
  if line.kind <= 2 then
    -- What it writes next lies on what is trimmed now.
    kind.save(s, line)
    s.gone, s.clipped = 0, nil
  end
  local ahead = line.kind == 1 and line.slice > 0 and line.slice - 1 or 0
  local outcome = 2
  local since = counts_from(s, line, at, seq)
  if at <= s.at + ahead and not kind.past(s, line, since) and not s.fresh then
    local settled = note_name('settled:', line, at, seq)
    if noted(s, settled) == since then
      outcome = 1
    else
      local place = place_of(s, line, at, since, seq)
      if not place then
        outcome = 2
      elseif to == EXTEND then
        outcome = extend(s, line, at, since, from, seq, place)
      elseif kind.amend(s, line, since, from, to, place) then
        outcome = 0
        add_note(s, settled, since)
        if to == 0 and #seq == 19 then add_note(s, note_name('void:', line, at, seq), at) end
      end
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
    local line = line_of(shape, key, notes, 1) or error('SGFOREIGN')
    outcome = settle(line, at, from, to, ARGV[seq])
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
