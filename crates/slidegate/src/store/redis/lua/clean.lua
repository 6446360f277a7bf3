
-- Tidies what is stored of one key: trims what no longer counts, drops what nobody needs.
--
-- plan   which of KEYS to say it of if they are not ours: 1, 2, 4 and 8, added up
-- reply  entries trimmed, keys dropped, expiries set, bytes freed, keys that are not ours, and whether there is more to trim than
--        one call may (see head.lua): 0 no, 1 yes, 2 yes, and some of KEYS were not looked at
--
-- Of what has left, the first `LOOK` members say whether a key is ours.
--
-- It trims as a peek would, and drops a key no sooner than its own expiry could have: so no decision is another for it.
-- What a wrong total would make of it is left to audit.lua. Redis 6.2 with a full memory denies a script's first write if
-- that may take memory, and no later one: so what frees, or takes none, comes first.

local which = take('<d')
local trimmed, dropped, expiries, freed, foreign, more = 0, 0, 0, 0, 0, 0
local LOOK = 512

local function asked(bit)
  return which % (2 * bit) >= bit
end

local function bytes(key)
  return call('MEMORY', 'USAGE', key) or 0
end

local function drop(key)
  freed, dropped = freed + bytes(key), dropped + 1
  call('UNLINK', key)
end

-- The notes of a count that is gone say nothing. With an expiry they go by themselves.
local function drop_notes(key)
  if type_of(key) == 'zset' and each_member(key, math.huge, is_note, LOOK) then drop(key) end
end

-- Entries and notes in a sorted set.
local function members(key)
  return call('ZCOUNT', key, '1', '+inf')
end

-- Frees what `how` removes, which says how many it removed.
local function trim(key, how)
  local before = bytes(key)
  trimmed = trimmed + how()
  freed = freed + math.max(0, before - bytes(key))
end

-- The highest score, if it is that of an entry or a note.
local function top_of(key)
  return tonumber(call('ZREVRANGEBYSCORE', key, '+inf', '1', 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
end

-- Each of these says: the state; when it stopped being of use; how many entries have left, and how they are trimmed, which says
-- how many were. Nothing if it is not ours.

local function see_window(line, h)
  local newest = math.floor(h.newest)
  local last = line.slice == 0 and math.max(h.l, newest) or h.l
  local cut = math.max(now, last) - line.window
  local ours = each_member(KEYS[1], cut, function(name, score)
    return score <= 0 or cost_of(line, name, score)
  end, LOOK)
  if not ours then return nil end
  local before = members(KEYS[1])
  local s = kinds[1].load(line)
  -- A key that was idle is emptied whole.
  local n = s.replace and before or s.expired
  return s, math.max(h.l, newest, top_of(KEYS[1])) + line.window, n, function()
    -- What counts for nothing leaves no trace.
    if unfinished then return before - members(KEYS[1]) end
    if s.gone > 0 then kinds[1].save(s, line) else call('ZREMRANGEBYSCORE', KEYS[1], '1', format('%d', cut)) end
    if (s.kept or 0) > 0 then more = 1 end
    return before - members(KEYS[1])
  end
end

local function see_counter(line, h)
  local s = kinds[line.kind].load(line)
  local ours = each_member(KEYS[1], s.cut, function(name, score)
    return score <= 0 or is_note(name)
  end, LOOK)
  if not ours then return nil end
  local n = call('ZCOUNT', KEYS[1], '1', format('%d', s.cut))
  local ends = line.kind == 3 and h.newest - fmod(h.newest, line.window) + line.window
    or h.newest + math.max(line.horizon, math.ceil(h.u / line.rate))
  if top_of(KEYS[1]) > s.cut then ends = now + 1 end
  return s, ends, n, function()
    local stay = trim_notes(KEYS[1], format('%d', s.cut))
    if stay > 0 then more = 1 end
    kinds[line.kind].save(s, line)
    return n - stay
  end
end

local function see_log(line)
  local _, size = kinds[2].window_of(3)
  local s = kinds[2].load(line)
  local n = s.gone > 0 and size - kinds[2].size(s) or 0
  return s, math.max(s.before, s.pushed) + line.window, n, function()
    call('PEXPIREAT', KEYS[3], expiry_of(s, line))
    if not unfinished then kinds[2].save(s, line) end
    return n
  end
end

-- Says the state and the line of what is left of ours, and whether it is something else.
local function clean_count(bit, key, notes, expected)
  local kind = type_of(key)
  if kind == 'none' then return nil end
  local line, h, s, ends, n, how
  if kind == expected then
    if expected == 'string' then line = read_log() else line, h = read_header() end
    local see = line and (line.kind == 2 and see_log or line.kind == 1 and see_window or see_counter)
    if see then s, ends, n, how = see(line, h) end
  end
  if not s then
    if asked(bit) then foreign = foreign + 1 end
    return nil, nil, true
  end
  if ends + math.floor(buffer / 2) <= now then
    unfinished = false
    drop(key)
    drop_notes(notes)
    return nil
  end
  local endless = call('PTTL', key) == -1
  if n > 0 and s.used >= 0 then trim(key, how) end
  if endless then
    call('PEXPIREAT', key, expiry_of(s, line))
    expiries = expiries + 1
  end
  return s, line
end

local function clean_notes(bit, key, s, line, other)
  local kind = type_of(key)
  if kind == 'none' then return end
  local endless = call('PTTL', key) == -1
  -- As `write_notes` does; of a count that does not know of them none matters.
  local known = s and s.has_notes and line.kind <= 2
  local cut = known and s.last - line.window or math.huge
  local ours = kind == 'zset' and each_member(key, cut, is_note, LOOK)
  if not ours then
    if asked(bit) then foreign = foreign + 1 end
  elseif not known then
    if endless and not other then drop(key) end
  else
    local n = call('ZCOUNT', key, '1', format('%d', cut))
    if n > 0 then
      trim(key, function()
        local stay = trim_notes(key, format('%d', cut))
        if stay > 0 then more = 1 end
        return n - stay
      end)
    end
    if type_of(key) == 'none' then
      dropped = dropped + 1
    elseif endless then
      call('PEXPIREAT', key, expiry_of(s, line))
      expiries = expiries + 1
    end
  end
end

local function clean(bit, key, notes, expected)
  local s, line, other = clean_count(bit, key, notes, expected)
  if unfinished then
    more = 2
  else
    clean_notes(2 * bit, notes, s, line, other)
  end
end

clean(1, KEYS[1], KEYS[2], 'zset')
if not unfinished then clean(4, KEYS[3], KEYS[4], 'string') end
return struct.pack('<dddddd', trimmed, dropped, expiries, freed, foreign, more)
