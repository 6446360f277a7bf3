
-- Counter kinds 3 and 4, `fixed-window` and `token-bucket`: a sorted set with a header and notes.
--
--   score       member       meaning
--   -used       u            permits in use; for a bucket, the units missing from it
--   -number     n            number of the next admission
--   -number     c            number of the first admission, which is the instant at which the key was created
--   -instant    g            for a bucket: admissions up to this instant no longer affect the level
--   -instant    <quota tag>  when the counter last changed; the member is the algorithm and the quota
--
-- Each of these kinds also has: `algorithm`, the name of the kind in quota tags; `read_tag`, which sets the fields of a
-- line from the numbers of a quota tag and returns false if a number is missing; `second`, the header member of the
-- second number, if the kind has two; and `ends`, which returns the instant at which a key with the header `h` is no
-- longer needed.
--
-- Invariant: a bucket counts in units. A microsecond adds `rate` units, and a permit is `per` units, so nothing is
-- rounded. A settlement may put the bucket one capacity into debt: at most two capacities are missing, so the key
-- lives for at most twice the time to fill.

-- Functions that sliding_counter.lua uses too.
local counter

do
  local function div_floor(a, b)
    local r = fmod(a, b)
    if r < 0 then r = r + b end
    return (a - r) / b, r
  end

  local function div_ceil(a, b)
    local q, r = div_floor(a, b)
    return r > 0 and q + 1 or q
  end

  local function header(line)
    local key = KEYS[line.key]
    local s = { key = key, notes = key, quota_tag = line.quota_tag, used = 0, last = 0, n = now, c = now, g = 0,
                count = 0, at = now, fresh = true }
    local found = call('ZRANGEBYSCORE', key, '-inf', '0', 'WITHSCORES', 'LIMIT', '0', '16')
    for i = 1, #found, 2 do
      local name, score = found[i], -tonumber(found[i + 1])
      if name == 'u' then s.used = score
      elseif #name == 1 then s[name] = score
      else s.stored, s.last = name, score end
    end
    if s.stored ~= line.quota_tag then check_ours(key, s.stored) end
    s.pushed = s.last
    return s
  end

  local function blank(s)
    s.used, s.last, s.n, s.c, s.g, s.at, s.pushed = 0, 0, now, now, 0, now, 0
    s.replace = s.stored ~= nil
    return s
  end

  local function number(s, cost, times)
    local ordinal = s.n
    s.n = s.n + times
    s.count = s.count + times
    s.last = s.at
    return s.at, ordinal
  end

  -- Writes the header, with `used` as its first number.
  local function save(s, line, ttl, used)
    if s.count == 0 and not s.restored and (s.fresh or not s.moved) then return end
    local key = s.key
    if s.replace then drop_key(key) end
    if s.marks and not s.fresh then trim_notes(key, format('%d', s.cut)) end
    if s.stored and s.stored ~= s.quota_tag and not s.replace then call('ZREM', key, s.stored) end
    local members = s.marks or {}
    local function add(score, member)
      members[#members + 1] = format('%d', score)
      members[#members + 1] = member
    end
    add(-used, 'u')
    add(-s.last, s.quota_tag)
    add(-s.n, 'n')
    if s.fresh then add(-s.c, 'c') end
    local second = kinds[line.kind].second
    if second then add(-s[second], second) end
    call('ZADD', key, unpack(members))
    dropped[key] = nil
    -- The first change in each period sets the expiry of the key. So does a change of the quota, and a bucket that
    -- needs longer than its horizon to fill.
    if s.stored ~= s.quota_tag or ttl > line.ttl or s.at - fmod(s.at, line.period) > s.pushed then
      expire_at(key, s.at + ttl)
    end
  end

  -- Returns true if the admission with the number `seq` was made since the key was created.
  local function made_here(s, at, seq)
    return at >= s.c and (seq >= 1e18 or seq >= s.c and seq < s.n)
  end

  local fixed = { algorithm = 'fixed-window' }

  function fixed.read_tag()
    return true
  end

  function fixed.ends(line, h)
    return h.newest - fmod(h.newest, line.window) + line.window
  end

  function fixed.load(line)
    local s = header(line)
    if s.stored == line.quota_tag then
      s.fresh, s.has_notes = false, true
      if s.last > s.at then s.at = s.last end
    else
      blank(s)
    end
    s.start = s.at - fmod(s.at, line.window)
    s.cut = s.start - 1
    if s.last < s.start then
      s.used, s.last, s.moved = 0, s.at, true
    end
    return s
  end

  function fixed.past(s, _, at)
    return at < s.start
  end

  function fixed.keep_newest(s, _, keep)
    if s.used > keep then s.used = keep end
  end

  function fixed.record(s, _, cost, times)
    s.used = s.used + cost * times
    return number(s, cost, times)
  end

  function fixed.wait(s, line, cost)
    if s.used + cost <= line.capacity then return 0 end
    return s.start + line.window - s.at
  end

  function fixed.reset(s, line)
    if s.used == 0 then return 0 end
    return s.start + line.window - s.at
  end

  function fixed.save(s, line)
    save(s, line, line.ttl, s.used)
  end

  function fixed.amend(s, line, at, from, to, seq)
    if not made_here(s, at, seq) then return false end
    s.used = math.min(math.max(s.used - from, 0) + to, MAX_TOTAL)
    s.moved = true
    return true
  end

  -- Writes entries back: see restore.lua.
  function fixed.restore(s, line, entries, by)
    local cost, newest = 0, entries[#entries].at
    if newest > s.at then
      -- The newest admission is dated ahead of the state, and may belong to the next window.
      s.at, s.start = newest, newest - fmod(newest, line.window)
      s.cut = s.start - 1
      if s.last < s.start then s.used = 0 end
    end
    for _, entry in ipairs(entries) do
      if entry.at >= s.start then cost = cost + entry.cost end
      if s.fresh and entry.at < s.c then s.c = entry.at end
    end
    if cost == 0 then return 0 end
    local added = cost
    if by.lost then
      added = by.declared(s, s.start, s.start, s.used, cost)
    elseif not by.new_batch(s, s.start) then
      return 0
    end
    s.used, s.last, s.moved, s.restored = s.used + added, s.at, true, true
    fixed.save(s, line)
    return added
  end

  local bucket = { algorithm = 'token-bucket', second = 'g' }

  function bucket.read_tag(line, rate, per, burst)
    if not burst then return false end
    line.rate, line.per, line.capacity = rate, per, burst
    line.horizon = math.ceil(per * burst / rate)
    return true
  end

  function bucket.ends(line, h)
    return h.newest + math.max(line.horizon, math.ceil(h.u / line.rate))
  end

  local function set_used(s, line)
    s.used = div_ceil(s.missing, line.per)
  end

  -- Returns the most units that a settlement may leave missing.
  local function most_missing(capacity, per)
    return math.min(2 * capacity * per, MAX_TOTAL)
  end

  -- Returns the quotient and the remainder of a * b / c for a <= c; by long multiplication if the product is not exact in
  -- a double.
  local function scale(a, b, c)
    if a * b < 2 ^ 53 then return div_floor(a * b, c) end
    local q, r, bit = 0, 0, 2 ^ 51
    while bit >= 1 do
      q, r = q * 2, r * 2
      if b >= bit then
        b, r = b - bit, r + a
      end
      while r >= c do
        q, r = q + 1, r - c
      end
      bit = bit / 2
    end
    return q, r
  end

  -- Updates `g`: admissions older than the time to fill no longer matter, and no admission matters if the bucket is
  -- full.
  local function note_gone(s, horizon)
    s.g = math.max(s.g, s.at - horizon)
    if s.missing == 0 then s.g = math.max(s.g, s.at - 1) end
  end

  function bucket.load(line)
    local s = header(line)
    local rate, per, burst
    if s.stored then
      rate, per, burst = string.match(s.stored, '^token%-bucket (%d+) (%d+) (%d+)$')
    end
    if not rate then
      blank(s)
      s.missing, s.g, s.cut = 0, math.max(now - 1, 0), now - 1
      set_used(s, line)
      return s
    end
    rate, per, burst = tonumber(rate), tonumber(per), tonumber(burst)
    s.fresh, s.has_notes = false, true
    s.missing = s.used
    if s.last > s.at then s.at = s.last end
    local elapsed = s.at - s.last
    s.moved = elapsed > 0 or s.stored ~= line.quota_tag
    s.missing = math.max(0, s.missing - elapsed * rate)
    if elapsed > 0 then s.last = s.at end
    note_gone(s, div_ceil(burst * per, rate))
    if s.stored ~= line.quota_tag then
      -- If the rate or the burst has changed, the level in permits stays the same.
      local full = line.capacity * line.per
      local owes_more = s.missing > most_missing(burst, per)
      local whole, part = div_floor(burst * per - s.missing, per)
      local level = whole * line.per + scale(part, line.per, per)
      -- After a change to a smaller burst, the bucket owes at most the new burst, unless it owed more than the old
      -- burst before.
      local most = owes_more and MAX_TOTAL or most_missing(line.capacity, line.per)
      s.missing = math.min(math.max(full - level, 0), most)
      note_gone(s, line.horizon)
    end
    s.cut = s.g
    set_used(s, line)
    return s
  end

  function bucket.past(s, _, at)
    return at <= s.g
  end

  function bucket.keep_newest(s, line, keep)
    s.missing = math.min(s.missing, keep * line.per)
    set_used(s, line)
  end

  function bucket.record(s, line, cost, times)
    s.missing = s.missing + cost * times * line.per
    set_used(s, line)
    return number(s, cost, times)
  end

  function bucket.wait(s, line, cost)
    local short = cost * line.per - (line.capacity * line.per - s.missing)
    return short > 0 and div_ceil(short, line.rate) or 0
  end

  function bucket.reset(s, line)
    return div_ceil(s.missing, line.rate)
  end

  function bucket.save(s, line)
    save(s, line, line.ttl + math.max(0, bucket.reset(s, line) - line.horizon), s.missing)
  end

  function bucket.amend(s, line, at, from, to, seq)
    if not made_here(s, at, seq) then return false end
    local most = math.max(s.missing, most_missing(line.capacity, line.per))
    s.missing = math.min(math.max(s.missing + (to - from) * line.per, 0), most)
    s.moved = true
    return true
  end

  -- Writes entries back: see restore.lua. The missing units are written back as whole permits, rounded up.
  function bucket.restore(s, line, entries, by)
    local missing, last = 0, 0
    -- A new key accepts settlements of admissions that are as old as the time to fill.
    if s.fresh then s.c, s.g = s.at - line.horizon, s.at - line.horizon end
    -- All nodes share the refill, so only a part of the rate refills the admissions of this node.
    local rate = math.floor(line.rate / by.nodes)
    for _, entry in ipairs(entries) do
      missing = math.max(0, missing - (entry.at - last) * rate) + entry.cost * line.per
      last = entry.at
    end
    missing = math.max(0, missing - math.max(0, s.at - last) * rate)
    local most = most_missing(line.capacity, line.per)
    local cost = div_ceil(math.min(missing, most), line.per)
    if cost == 0 then return 0 end
    local added = cost
    if by.lost then
      added = by.lacking(s, div_ceil(s.missing, line.per), cost)
    elseif not by.new_batch(s, s.at) then
      return 0
    end
    s.missing = math.min(s.missing + added * line.per, math.max(s.missing, most))
    set_used(s, line)
    s.last, s.moved, s.restored = s.at, true, true
    bucket.save(s, line)
    return added
  end

  kinds[3], kinds[4] = fixed, bucket
  counter = { header = header, blank = blank, number = number, save = save, scale = scale, made_here = made_here }
end
