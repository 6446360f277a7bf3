
-- Settles admissions, one after another, at one instant.
--
-- plan   `ExpirySettings`, `SettleHead`, each `SettlementLine`
-- reply  a `SettledReply` for each settlement
--
-- The quota tag that is stored with a key says how the key counts, so the plan does not contain the quota.
--
-- If a settlement frees permits, the script publishes the name of the key, so that other nodes stop denying requests
-- that fit again. If the Redis user may not publish, the settlement still succeeds.

local channel, settlement_count = SettleHead.take()

-- Returns the instant from which an admission counts: the instant of its last extension, or else of the admission.
local function counts_from(s, line, at, seq)
  return line.is_concurrency and noted_at(s, note_name('moved:', line, at, seq)) or at
end

-- Used as the ordinal of an admission that a note proves. For this value `amend` does not check whether the ordinal was
-- given out at the instant of the admission.
local PROVEN = 1e18

-- Returns true if a node wrote back an admission of this instant.
local function is_written_back(s, line, at)
  if line.kind ~= 1 or line.slice > 0 then return (noted_at(s, 'heal:newest') or 0) >= at end
  for _, name in ipairs(call('ZRANGEBYSCORE', s.key, format('%d', at), format('%d', at), 'LIMIT', '0', '64')) do
    if string.find(name, '-', 1, true) then return true end
  end
  return false
end

-- Returns the ordinal of an admission among the admissions of its instant; nil if the admission was never made. A
-- number of 19 digits belongs to a request with an id, whose admission a note must prove. A number of 20 digits belongs
-- to an admission that a node wrote back.
local function ordinal_of(s, line, at, since, seq)
  if since ~= at then return PROVEN end
  if #seq < 19 then return tonumber(seq) end
  if #seq == 19 then
    local k = tonumber(string.sub(seq, 18))
    local name = 'id:' .. string.sub(seq, 1, 17) .. (k > 0 and '/' .. format('%d', k) or '')
    if noted_at(s, name) == at then return PROVEN end
  end
  return is_written_back(s, line, at) and PROVEN or nil
end

-- Extends a concurrency permit. Moves no more permits than are recorded, even if the caller claims a higher cost.
local function extend(s, line, at, since, cost, seq, ordinal)
  if not line.is_concurrency or cost == 0 then return SettledCode.Gone end
  if since == s.at then return SettledCode.Done end
  local before = s.used
  if not kinds[1].amend(s, line, since, cost, 0, ordinal) then return SettledCode.Gone end
  add_note(s, note_name('moved:', line, at, seq), (kinds[1].record(s, line, before - s.used, 1)))
  kinds[1].save(s, line)
  s.marks = nil
  return SettledCode.Done
end

local function settle(line, settlement)
  local at, from, to, seq = settlement.at, settlement.from, settlement.to, settlement.seq
  local kind = kinds[line.kind]
  local s = kind.load(line)
  if unfinished or s.replace and not drop_key(s.key) then return SettledCode.Unfinished end
  if line.kind <= 2 then
    -- The trimmed state is written first, because `amend` changes the stored key directly.
    kind.save(s, line)
    s.gone, s.clipped = 0, nil
  end
  local ahead = line.kind == 1 and line.slice > 0 and line.slice - 1 or 0
  local outcome = SettledCode.Gone
  local since = counts_from(s, line, at, seq)
  if at <= s.at + ahead and not kind.past(s, line, since) and not s.fresh then
    local settled = note_name('settled:', line, at, seq)
    if noted_at(s, settled) == since then
      outcome = SettledCode.Already
    else
      local ordinal = ordinal_of(s, line, at, since, seq)
      if ordinal and settlement.extends == 1 then
        outcome = extend(s, line, at, since, from, seq, ordinal)
      elseif ordinal and kind.amend(s, line, since, from, to, ordinal) then
        outcome = SettledCode.Done
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

local reply = { ReplyHead.pack({ at = now }) }
for i = 1, settlement_count do
  local settlement = SettlementLine.take_table()
  settlement.seq = ARGV[settlement.seq]
  local quota_tag = quota_tag_of(KEYS[settlement.key])
  local outcome = SettledCode.Gone
  if quota_tag then
    outcome = settle(line_of(quota_tag, settlement.key, settlement.notes, 1) or error('SGFOREIGN'), settlement)
  end
  -- If a rule changed its encoding, both encodings may still be stored.
  if outcome == SettledCode.Gone then
    local window = kinds[2].window_of(settlement.log)
    if window then
      local quota_tag = format('sliding-window %d', window)
      outcome = settle(line_of(quota_tag, settlement.log, settlement.log_notes, 2), settlement)
    end
  end
  if outcome == SettledCode.Done and settlement.to < settlement.from then
    redis.pcall('PUBLISH', ARGV[channel], ARGV[settlement.name])
  end
  reply[i + 1] = SettledReply.pack({ outcome = outcome })
end
return table.concat(reply)
