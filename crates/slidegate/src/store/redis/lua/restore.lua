
-- Writes back permits that a node had admitted: this server may have lost them, or was unreachable when they were
-- admitted.
--
-- plan   `RestoreHead`; for each line `Line`, `EntryCount` and each `RestoreEntry`
-- reply  for each line a `RestoredReply`
--        or the integer 1: nothing was written, because more entries have expired than one call may sum up (see
--        prelude.lua)
--
-- Invariant: writing the same batch twice adds nothing twice. An exact window knows its entries by their instants: an
-- entry that the server admitted is stored or was lost, and an entry that the node admitted by itself has the node's
-- name. Other counters keep a sum: the permits that the nodes declare to have admitted, less what the server still
-- had when the first of them declared.

local node, run, batch, lost, since, nodes, line_count = RestoreHead.take()
node, run, batch = ARGV[node], ARGV[run], ARGV[batch]

-- Returns what the nodes have declared of the sum `sum` in notes from `from` to `to`: the sum of all nodes, the value of
-- this node, and what the server had before.
local function read_declarations(s, sum, from, to)
  local mark = 'heal:' .. run .. '.' .. sum
  local together, mine, base = 0, 0, nil
  local offset, found = 0, nil
  while s.has_notes and (not found or #found == 64 and offset < 2048) do
    if from == to then
      -- The names of these notes sort first within an instant.
      found = call('ZRANGEBYSCORE', s.notes, from, to, 'LIMIT', format('%d', offset), '64')
      if found[64] and string.sub(found[64], 1, 5) ~= 'heal:' then offset = 2048 end
    else
      found = call('ZREVRANGEBYSCORE', s.notes, to, from, 'LIMIT', format('%d', offset), '64')
    end
    offset = offset + 64
    for _, name in ipairs(found) do
      if string.sub(name, 1, #mark) == mark then
        local owner, value = string.match(name, '^([^*]*)%*(%d+)$', #mark + 1)
        value = tonumber(value)
        if owner == 'base' then
          base = value
        else
          together = together + value
          if owner == node then mine = value end
        end
      end
    end
  end
  return together, mine, base
end

-- The newest instant of the line that is being written back. It is noted, so that its admissions can be settled: see
-- settle.lua.
local newest

local function declare(s, sum, date, owner, value, before)
  add_note(s, 'heal:newest', newest)
  if before > 0 then call('ZREM', s.notes, format('heal:%s.%s%s*%d', run, sum, owner, before)) end
  add_note(s, format('heal:%s.%s%s*%d', run, sum, owner, value), date)
end

-- Returns how much to add to a sum of which `have` is left, when this node has admitted `cost` of it. Nothing is left
-- of a sum that `began` after the server became unreachable. The declaration is noted at `date`, which is also part of
-- its name: a key may have several sums.
local function declared(s, date, began, have, cost)
  local sum = format('%x.', date)
  local together, mine, base = read_declarations(s, sum, format('%d', date), format('%d', date))
  if not base then
    base = (began >= since or (s.c or s.created or 0) >= since) and 0 or have
    declare(s, sum, date, 'base', base, 0)
  end
  if cost <= mine then return 0 end
  declare(s, sum, date, node, cost, mine)
  return math.max(0, together - mine + cost - base) - math.max(0, together - base)
end

-- Returns how many permits to take from a bucket, when this node has admitted `cost` that is not refilled yet: the
-- sum over all nodes must be missing. The nodes declare again until all of them have, because the bucket refills
-- meanwhile.
local function lacking(s, have, cost)
  local together, mine = read_declarations(s, '', '1', '+inf')
  declare(s, '', s.at, node, cost, mine)
  return math.max(0, together - mine + cost - have)
end

-- Returns true if this batch is new to a key, and notes it at `date`.
local function new_batch(s, date)
  local name = 'heal:' .. node .. '/' .. batch
  if noted_at(s, name) then return false end
  add_note(s, name, date)
  add_note(s, 'heal:newest', newest)
  return true
end

local lines, all = {}, {}
for i = 1, line_count do
  local line, entries = take_line(), {}
  local entry_count = EntryCount.take()
  for j = 1, entry_count do
    local entry = RestoreEntry.take_table()
    entry.admitted = entry.admitted == 1
    entries[j] = entry
  end
  lines[i], all[i] = line, entries
  local s = kinds[line.kind].load(line)
  -- Counts that start anew are removed before anything is written.
  if not unfinished then
    if s.replace and not drop_key(s.key) then return 1 end
    if line.notes > 0 and s.notes ~= s.key and not s.has_notes and not drop_key(s.notes) then return 1 end
  end
end
if unfinished then return 1 end

-- Each key is loaded again: one key may have several lines.
trims, dropped = TRIMS, {}
local reply = { ReplyHead.pack({ at = now }) }
for i = 1, line_count do
  local line = lines[i]
  newest = all[i][#all[i]].at
  local s = kinds[line.kind].load(line)
  local added = kinds[line.kind].restore(s, line, all[i],
    { node = node, nodes = nodes, lost = lost == 1, declared = declared, lacking = lacking,
      new_batch = new_batch })
  reply[i + 1] = RestoredReply.pack({ added = added, used = s.used })
end
return table.concat(reply)
