
-- Counts a key again from its entries, and compares the result with its header, which decisions rely on.
--
-- plan   `AuditHead`
-- reply  for the count and for the log: `AuditReplyHead`, and then `AuditReply`, `ForeignReply` or nothing
--
-- Invariant: nothing may be decided between the check and the repair, which is why one script does both. Permits that
-- have expired since the last decision are not a discrepancy.

local repair, most = AuditHead.take()
repair = repair == 1

-- Returns a number that the reply can hold: a wrong header may contain any number.
local function plain(number)
  return number >= 0 and math.min(math.floor(number), MAX_TOTAL) or 0
end

-- Returns the instant that the header must contain: `found`, the instant of the newest stored entry that counts. If no
-- such entry is stored, the instant in the header is correct if the last instant is at least a window later, because
-- the newest entry was then seen to expire.
local function newest_of(found, stored, last, window)
  return found == 0 and last >= stored + window and stored or found
end

local function audit_window(line, h)
  local key, ats, costs, found = KEYS[1], {}, {}, 0
  local ours = each_member(key, math.huge, function(name, score)
    if score <= 0 then return true end
    local cost = cost_of(line, name, score)
    if cost then
      ats[#ats + 1], costs[#costs + 1] = score, cost
      if cost > 0 then found = score end
    end
    return cost
  end)
  if not ours then return nil end
  local stored = math.floor(h.newest)
  local newest = newest_of(found, stored, h.l, line.window)
  local last = line.slice == 0 and math.max(h.l, newest) or h.l
  local at = math.max(now, last)
  local cut, counted, gone, uniform_cost, wrong = at - line.window, 0, 0, nil, false
  -- A quarter in `u` means that `m` is not 1 and must be read; otherwise every entry costs 1.
  local stated_cost = (h.u or 0) % 0.5 > 0 and h.m or 1
  for i, cost in ipairs(costs) do
    wrong = wrong or h.m > 0 and cost ~= h.m or stated_cost > 0 and cost ~= stated_cost
    if ats[i] > cut then
      counted = counted + cost
      uniform_cost = (uniform_cost or cost) == cost and cost or 0
    else
      gone = gone + cost
    end
  end
  local used = kinds[1].load(line).used
  local s = { at = at, newest = newest, used = counted, last = gone > 0 and at or last }
  return {
    state = s, counted = counted, stored = used, newest = { stored, newest }, oldest = { 0, 0 }, costs = wrong,
    total = not h.u or math.floor(h.u) ~= counted + gone and used ~= counted,
    leaves = counted > 0 and newest + line.window or 0,
    apply_repair = function()
      uniform_cost = uniform_cost or 1
      local later = (line.slice > 0 or s.last > newest) and s.last or 0
      call('ZREMRANGEBYSCORE', key, '1', format('%d', cut))
      call('ZADD', key, kinds[1].write_used(s, uniform_cost), 'u', kinds[1].write_newest(s, h.newest % 1 > 0),
        line.quota_tag, format('-%d', later), 'l', format('-%d', uniform_cost), 'm')
    end,
  }
end

local function audit_log(line)
  local log, key = kinds[2], KEYS[3]
  local s = { key = key, notes = KEYS[4] }
  log.unpack_header(s, call('GETRANGE', key, '0', '523'))
  s.latest, s.at = math.max(now, s.last), math.max(now, s.last)
  local cut, n, i = s.at - line.window, log.size(s), 0
  local counted, gone, found, oldest, before, body = 0, 0, 0, nil, -1, {}
  while i < n do
    local raw, got = log.records(s, i, n - i)
    for j = 0, got - 1 do
      local instant, cost = log.read(s, raw, j * s.width + 1)
      if instant <= before then return nil end
      oldest, before = oldest or instant, instant
      if cost > 0 then found = instant end
      if instant > cut then
        counted = counted + cost
        body[#body + 1] = string.sub(raw, j * s.width + 1, (j + 1) * s.width)
      else
        gone = gone + cost
      end
    end
    i = i + got
  end
  local used = log.load(line).used
  local newest = newest_of(found, s.newest, s.last, line.window)
  return {
    state = s, counted = counted, stored = used, newest = { s.newest, newest }, costs = false,
    oldest = { s.oldest, oldest or s.oldest },
    total = s.used ~= counted + gone and used ~= counted,
    leaves = counted > 0 and newest + line.window or 0,
    apply_repair = function()
      s.used, s.newest, s.oldest = counted, newest, oldest or 0
      if gone > 0 then s.last = s.at end
      if body[1] then s.oldest = log.read(s, body[1], 1) end
      log.write_log(s, line, { table.concat(body) }, #body + 16, s.width)
    end,
  }
end

-- A counter stores only its total.
local function audit_counter(line)
  local ours = each_member(KEYS[1], math.huge, function(name, score) return score <= 0 or is_note(name) end)
  if not ours then return nil end
  local s = kinds[line.kind].load(line)
  return {
    state = s, counted = s.used, stored = s.used, newest = { 0, 0 }, oldest = { 0, 0 }, costs = false, total = false,
    leaves = s.used > 0 and s.at + kinds[line.kind].reset(s, line) or 0,
  }
end

local function flag(whether)
  return whether and 1 or 0
end

local function audit(key, expected)
  local kind = type_of(key)
  if kind == 'none' then return AuditReplyHead.pack({ form = AuditForm.Missing }) end
  local large = kind == 'zset' and call('ZCOUNT', key, '-inf', '+inf') > most
    or kind == 'string' and #call('GETRANGE', key, format('%d', 8 * most), format('%d', 8 * most)) > 0
  if large then return AuditReplyHead.pack({ form = AuditForm.Missing }) end
  local line, h, a
  if kind == expected then
    if expected == 'string' then line = read_log() else line, h = read_header() end
    local audit_part = line and (line.kind == 2 and audit_log or line.kind == 1 and audit_window or audit_counter)
    a = audit_part and audit_part(line, h)
  end
  local left = call('PTTL', key)
  -- The clock is read after PTTL, so that a key that expires just late enough is not reported as expiring too early.
  local later = call('TIME')
  later = later[1] * 1000000 + later[2]
  local expires = left < 0 and 0 or math.max(plain(left * 1000), 1)
  if not a then return AuditReplyHead.ForeignReply.pack({ form = AuditForm.Foreign, expires = expires }) end
  local needed = math.max(0, a.leaves - later)
  local wrong = a.total or a.costs or a.newest[1] ~= a.newest[2] or a.oldest[1] ~= a.oldest[2]
  local short = expires == 0 or expires < needed
  if repair and (wrong or short) then
    -- A write that takes no memory comes first: gc.lua explains the order.
    call('PERSIST', key)
    if wrong then a.apply_repair() end
    expire_at(key, expiry_of(a.state, line))
  end
  return AuditReplyHead.AuditReply.pack({
    form = AuditForm.Counted, expires = expires, at = plain(a.state.at), counted = plain(a.counted),
    stored = plain(a.stored), total_is_wrong = flag(a.total), costs_are_wrong = flag(a.costs),
    newest_stored = plain(a.newest[1]), newest_counted = plain(a.newest[2]), oldest_stored = plain(a.oldest[1]),
    oldest_counted = plain(a.oldest[2]), needed = plain(needed), repaired = flag(repair and (wrong or short)),
  })
end

return ReplyHead.pack({ at = now }) .. audit(KEYS[1], 'zset') .. audit(KEYS[3], 'string')
