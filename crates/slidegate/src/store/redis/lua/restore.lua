
-- Writes back permits that a node has admitted: this server may have lost the permits, or was unreachable when the node
-- admitted them.
--
-- plan   `RestoreHead`; for each line `Line`, `EntryCount` and each `RestoreEntry`
-- reply  for each line a `RestoredReply`;
--        instead of all this, the integer 1 if nothing was written, because more entries have expired than one call may
--        sum up (see prelude.lua)
--
-- Invariant: writing the same batch twice adds its permits once. An exact window identifies entries by their instants:
-- an entry that the server admitted is stored or was lost, and the name of an entry that a node admitted by itself
-- contains the name of the node. Other counters store only a sum: each node declares in a note how many permits it has
-- admitted, and the script adds the declared permits, less the permits that the server still had at the first
-- declaration.

local node, run, batch, lost, since, nodes, line_count = RestoreHead.take()
node, run, batch = ARGV[node], ARGV[run], ARGV[batch]

-- Reads the declarations about the sum `sum` in notes with scores from `from` to `to`. Returns the total of all nodes,
-- the value of this node, and the permits that the server had before the first declaration.
local function read_declarations(s, sum, from, to)
  local mark = 'heal:' .. run .. '.' .. sum
  local together, mine, base = 0, 0, nil
  local offset, found = 0, nil
  while s.has_notes and (not found or #found == 64 and offset < 2048) do
    if from == to then
      -- Within one score, members are sorted by name, and these names sort first.
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

-- Instant of the newest entry of the current line. The script notes it, so that settlements of restored admissions are
-- accepted: see `is_written_back` in settle.lua.
local newest

local function declare(s, sum, date, owner, value, before)
  add_note(s, 'heal:newest', newest)
  if before > 0 then call('ZREM', s.notes, format('heal:%s.%s%s*%d', run, sum, owner, before)) end
  add_note(s, format('heal:%s.%s%s*%d', run, sum, owner, value), date)
end

-- Returns how many permits to add to a sum of which the server still has `have` permits, if this node has admitted
-- `cost` permits of the sum. If the sum `began` or the key was created after the server became unreachable, `have`
-- contains none of the declared permits. The note of the declaration has the score `date`, and the date in its name,
-- because a key may have several sums.
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

-- Returns how many permits to take from a bucket from which `have` permits are missing, if `cost` permits that this
-- node has admitted are not refilled yet: the sum over all nodes must be missing. Each node declares again until all
-- nodes have declared, because the bucket refills meanwhile.
local function lacking(s, have, cost)
  local together, mine = read_declarations(s, '', '1', '+inf')
  declare(s, '', s.at, node, cost, mine)
  return math.max(0, together - mine + cost - have)
end

-- Returns true if the key has not received this batch before, and then adds a note about the batch at `date`.
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
  -- Counts that start anew are removed before anything is written, because a removal may end the call: see `is_here`.
  if not unfinished then
    if s.replace and not drop_key(s.key) then return 1 end
    if line.notes > 0 and s.notes ~= s.key and not s.has_notes and not drop_key(s.notes) then return 1 end
  end
end
if unfinished then return 1 end

-- Each line loads its key again, because one key may have several lines.
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
