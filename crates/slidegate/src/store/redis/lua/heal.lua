
-- Writes back what a node had admitted: this server may have lost it, or was not there when it was admitted.
--
-- plan   node, life, batch (texts), whether what the server had may be lost, since when it was away, how many nodes
--        write back, number of lines; of each line: what it is in admit.lua, how many entries, and of each: instant, cost, whether the server had
--        admitted it
-- reply  of each line: permits added, permits in use
--        or the integer 1: nothing was written, because more has left than one call may sum up (see head.lua)
--
-- Written twice, nothing is added twice. An exact window knows its entries by their instants: one that the server
-- admitted is there or was lost, and one that the node admitted by itself has the node's name. Other counters keep
-- a sum: what the nodes say they have admitted, less what the server still had when the first of them spoke.

local node, life, batch, lost, since, nodes, count = take('<ddddddd')
node, life, batch = ARGV[node], ARGV[life], ARGV[batch]

-- What the nodes have said they admitted, noted from `from` to `to`: together, this one, and what was there before.
local function said(s, from, to)
  local mark = 'heal:' .. life .. '.'
  local together, mine, base = 0, 0, nil
  local offset, found = 0, nil
  while s.has_notes and (not found or #found == 64 and offset < 2048) do
    if from == to then
      -- By their names they are the first of an instant.
      found = call('ZRANGEBYSCORE', s.notes, from, to, 'LIMIT', format('%d', offset), '64')
      if found[64] and string.sub(found[64], 1, 5) ~= 'heal:' then offset = 2048 end
    else
      found = call('ZREVRANGEBYSCORE', s.notes, to, from, 'LIMIT', format('%d', offset), '64')
    end
    offset = offset + 64
    for _, name in ipairs(found) do
      if string.sub(name, 1, #mark) == mark then
        local who, value = string.match(name, '^([^*]*)%*(%d+)$', #mark + 1)
        value = tonumber(value)
        if who == 'base' then
          base = value
        else
          together = together + value
          if who == node then mine = value end
        end
      end
    end
  end
  return together, mine, base
end

-- The newest instant of the line that is written back. It is noted, so that its admissions can be settled: see settle.lua.
local newest

local function say(s, date, who, value, before)
  add_note(s, 'heal:newest', newest)
  if before > 0 then call('ZREM', s.notes, format('heal:%s.%s*%d', life, who, before)) end
  add_note(s, format('heal:%s.%s*%d', life, who, value), date)
end

-- What to add to a sum of which `have` is left, when this node has admitted `cost` of it. Nothing is left of one that
-- `began` after the server was away. Noted at `date`.
local function declared(s, date, began, have, cost)
  local together, mine, base = said(s, format('%d', date), format('%d', date))
  if not base then
    base = (began >= since or (s.c or s.created or 0) >= since) and 0 or have
    say(s, date, 'base', base, 0)
  end
  if cost <= mine then return 0 end
  say(s, date, node, cost, mine)
  return math.max(0, together - mine + cost - base) - math.max(0, together - base)
end

-- What to add to what is missing from a bucket, when this node lacks `cost` of it: all that the nodes lack together is
-- missing. They say it again until all have, because it is refilled meanwhile.
local function lacking(s, have, cost)
  local together, mine = said(s, '1', '+inf')
  say(s, s.at, node, cost, mine)
  return math.max(0, together - mine + cost - have)
end

-- Whether this batch is new to a key; it is noted at `date`.
local function new_batch(s, date)
  local name = 'heal:' .. node .. '/' .. batch
  if noted(s, name) then return false end
  add_note(s, name, date)
  add_note(s, 'heal:newest', newest)
  return true
end

local lines, all = {}, {}
for i = 1, count do
  local key, notes, kind, shape, _, a, per, horizon, window, capacity, period, expiry, modulus =
    take('<ddddddddddddd')
  local line = {
    key = key, notes = notes, kind = kind, shape = ARGV[shape], window = window, capacity = capacity, slice = a,
    rate = a, per = per, horizon = horizon, period = period, life = expiry, modulus = modulus,
  }
  local entries = {}
  for j = 1, take('<d') do
    local at, cost, admitted = take('<ddd')
    entries[j] = { at = at, cost = cost, admitted = admitted == 1 }
  end
  lines[i], all[i] = line, entries
  local s = kinds[kind].load(line)
  -- What starts anew is removed before anything is written.
  if not unfinished then
    if s.replace and not drop_key(s.key) then return 1 end
    if notes > 0 and s.notes ~= s.key and not s.has_notes and not drop_key(s.notes) then return 1 end
  end
end
if unfinished then return 1 end

-- Each is loaded again: one key may have several lines.
trims, dropped = TRIMS, {}
local reply = { struct.pack('<d', now) }
for i = 1, count do
  local line = lines[i]
  newest = all[i][#all[i]].at
  local s = kinds[line.kind].load(line)
  local added = kinds[line.kind].heal(s, line, all[i],
    { node = node, nodes = nodes, lost = lost == 1, declared = declared, lacking = lacking,
      new_batch = new_batch })
  reply[i + 1] = struct.pack('<dd', added, s.used)
end
return table.concat(reply)
