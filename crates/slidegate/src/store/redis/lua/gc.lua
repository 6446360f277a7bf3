
-- Garbage collection of one rate limit key: trims entries that no longer count, and drops keys that are no longer
-- needed.
--
-- plan   `GcHead`
-- reply  `GcReply`, without `ReplyHead`: entries trimmed, keys dropped, expiries set, bytes freed, foreign keys, and
--        the work that is left for another call (`GcRest`)
--
-- Invariant: the script changes no decision. It trims as a peek does, and drops a key no sooner than the expiry of the
-- key could have removed it. It leaves a wrong total to audit.lua. If the memory of Redis 6.2 is full, Redis denies the
-- first write of a script if that command may take memory, but no later write. So the script starts with writes that
-- free memory or take none.
--
-- Cost: at most the first `LOOK` expired members are read to decide whether a key is foreign.

local reported = GcHead.take()
local trimmed, dropped, expiries, freed, foreign, rest = 0, 0, 0, 0, 0, GcRest.Done
local LOOK = 512

local function is_reported(bit)
  return reported % (2 * bit) >= bit
end

local function bytes(key)
  return call('MEMORY', 'USAGE', key) or 0
end

local function drop(key)
  freed, dropped = freed + bytes(key), dropped + 1
  call('UNLINK', key)
end

-- Drops the notes of a count that was dropped, unless the notes key holds foreign data.
local function drop_notes(key)
  if type_of(key) == 'zset' and each_member(key, math.huge, is_note, LOOK) then drop(key) end
end

-- Returns the number of entries and notes in a sorted set.
local function members(key)
  return call('ZCOUNT', key, '1', '+inf')
end

-- Calls `trim_entries`, which returns how many entries it removed, and adds up the freed bytes.
local function trim(key, trim_entries)
  local before = bytes(key)
  trimmed = trimmed + trim_entries()
  freed = freed + math.max(0, before - bytes(key))
end

-- Returns the highest score of an entry or a note; 0 if there is neither.
local function top_of(key)
  return tonumber(call('ZREVRANGEBYSCORE', key, '+inf', '1', 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
end

-- Each scan function returns the state, the instant from which the key is no longer needed, the number of expired
-- entries, and a function that trims these entries and returns how many it trimmed. Returns nothing if the key is
-- foreign.

local function scan_window(line, h)
  local newest = math.floor(h.newest)
  local last = line.slice == 0 and math.max(h.l, newest) or h.l
  local cut = math.max(now, last) - line.window
  local ours = each_member(KEYS[1], cut, function(name, score)
    return score <= 0 or cost_of(line, name, score)
  end, LOOK)
  if not ours then return nil end
  local before = members(KEYS[1])
  local s = kinds[1].load(line)
  -- If `load` has found that all entries have expired, it discards the whole count.
  local n = s.replace and before or s.expired
  return s, math.max(h.l, newest, top_of(KEYS[1])) + line.window, n, function()
    -- Expired entries of cost 0 do not change the header, so `save` would not remove them.
    if unfinished then return before - members(KEYS[1]) end
    if s.gone > 0 then kinds[1].save(s, line) else call('ZREMRANGEBYSCORE', KEYS[1], '1', format('%d', cut)) end
    if (s.kept or 0) > 0 then rest = GcRest.Entries end
    return before - members(KEYS[1])
  end
end

local function scan_counter(line, h)
  local s = kinds[line.kind].load(line)
  local ours = each_member(KEYS[1], s.cut, function(name, score)
    return score <= 0 or is_note(name)
  end, LOOK)
  if not ours then return nil end
  local n = call('ZCOUNT', KEYS[1], '1', format('%d', s.cut))
  local ends = kinds[line.kind].ends(line, h)
  if top_of(KEYS[1]) > s.cut then ends = now + 1 end
  return s, ends, n, function()
    local stay = trim_notes(KEYS[1], format('%d', s.cut))
    if stay > 0 then rest = GcRest.Entries end
    kinds[line.kind].save(s, line)
    return n - stay
  end
end

local function scan_log(line)
  local _, size = kinds[2].window_of(3)
  local s = kinds[2].load(line)
  local n = s.gone > 0 and size - kinds[2].size(s) or 0
  return s, math.max(s.before, s.pushed) + line.window, n, function()
    call('PERSIST', KEYS[3])
    if not unfinished then kinds[2].save(s, line) end
    expire_at(KEYS[3], expiry_of(s, line))
    return n
  end
end

-- Returns the state and the line of a count that remains, and as a third value whether the key is foreign.
local function collect_count(bit, key, notes, expected)
  local kind = type_of(key)
  if kind == 'none' then return nil end
  local line, h, s, ends, n, trim_entries
  if kind == expected then
    if expected == 'string' then line = read_log() else line, h = read_header() end
    local scan = line and (line.kind == 2 and scan_log or line.kind == 1 and scan_window or scan_counter)
    if scan then s, ends, n, trim_entries = scan(line, h) end
  end
  if not s then
    if is_reported(bit) then foreign = foreign + 1 end
    return nil, nil, true
  end
  if ends + math.floor(buffer / 2) <= now then
    unfinished = false
    drop(key)
    drop_notes(notes)
    return nil
  end
  local endless = call('PTTL', key) == -1
  if n > 0 and s.used >= 0 then trim(key, trim_entries) end
  if endless then
    expire_at(key, expiry_of(s, line))
    expiries = expiries + 1
  end
  return s, line
end

local function collect_notes(bit, key, s, line, other)
  local kind = type_of(key)
  if kind == 'none' then return end
  local endless = call('PTTL', key) == -1
  -- The notes are trimmed up to the same instant as in `write_notes`. If the count has no notes, no member of the notes
  -- key matters.
  local known = s and s.has_notes and line.kind <= 2
  local cut = known and s.last - line.window or math.huge
  local ours = kind == 'zset' and each_member(key, cut, is_note, LOOK)
  if not ours then
    if is_reported(bit) then foreign = foreign + 1 end
  elseif not known then
    if endless and not other then drop(key) end
  else
    local n = call('ZCOUNT', key, '1', format('%d', cut))
    if n > 0 then
      trim(key, function()
        local stay = trim_notes(key, format('%d', cut))
        if stay > 0 then rest = GcRest.Entries end
        return n - stay
      end)
    end
    if type_of(key) == 'none' then
      dropped = dropped + 1
    elseif endless then
      expire_at(key, expiry_of(s, line))
      expiries = expiries + 1
    end
  end
end

local function collect(bit, key, notes, expected)
  local s, line, other = collect_count(bit, key, notes, expected)
  if unfinished then
    rest = GcRest.Keys
  else
    collect_notes(2 * bit, notes, s, line, other)
  end
end

collect(1, KEYS[1], KEYS[2], 'zset')
if not unfinished then collect(4, KEYS[3], KEYS[4], 'string') end
return GcReply.pack({
  trimmed = trimmed, dropped = dropped, expiries = expiries, freed = freed, foreign = foreign, rest = rest,
})
