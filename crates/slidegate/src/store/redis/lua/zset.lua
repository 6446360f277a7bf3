
-- Counter kind 1, `sliding-window`, `time-slice` and `concurrency`: one sorted set.
--
--   score           member            meaning
--   -total          u                 permits of all stored entries; plus a quarter if `m` is not 1, plus a half if `l`
--                                     is later than the newest entry
--   -instant        <quota tag>       when the newest entry that counts was recorded, plus a half if this count has
--                                     notes; the member is the algorithm and the window
--   -instant        l                 when an entry was last recorded or seen to expire, if later than the newest entry
--   -cost           m                 uniform cost: the cost of every entry; 0 if costs differ
--   -instant        c                 when the key was created (`time-slice`)
--   instant         <hex>[*cost[.n]]  permits admitted at that instant; `n` is the ordinal of the next admission at the
--                                     instant, and is left out if it is 1
--   instant         <hex>-<node>[*cost]   permits that a node admitted at that instant and wrote back: see restore.lua
--
-- Invariant: there is one entry per instant, apart from entries that nodes wrote back. The name of an entry contains
-- its instant modulo a power of 16 above twice the window, so the name is short, and unique while the entry counts.
--
-- Cost: one range from the lowest score to the start of the window reads the header and the expired entries together.
-- The script removes a bounded number of expired entries per call. The permits of expired entries that are still stored
-- are part of `u`, and each call subtracts them.
--
-- Notes on single admissions are in `<key>:notes`: see notes.lua.

do
  local function read_name(name)
    local star = string.find(name, '*', 1, true)
    if not star then return 1, 1 end
    local cost, count = string.match(name, '^(%d+)%.?(%d*)', star + 1)
    return tonumber(cost), tonumber(count) or 1
  end

  local function write_name(at, modulus, cost, count)
    if count > 1 then return format('%x*%d.%d', at % modulus, cost, count) end
    if cost ~= 1 then return format('%x*%d', at % modulus, cost) end
    return format('%x', at % modulus)
  end

  -- Returns the score of `u`: the total, and the fractions that say whether `m` and `l` must be read, so that most
  -- decisions do not read `m` and `l`. `s.kept` is the cost of entries that have expired and are still stored.
  local function write_used(s, uniform_cost)
    local more = (uniform_cost == 1 and 0 or 0.25) + (s.last > s.newest and 0.5 or 0)
    local total = s.used + (s.kept or 0)
    return more == 0 and format('-%d', total) or format('-%.2f', total + more)
  end

  -- Returns the score of the quota tag: the instant of the newest entry, and whether there are notes.
  local function write_newest(s, has_notes)
    return format(has_notes and '-%d.5' or '-%d', s.newest)
  end

  local function blank(key, notes, quota_tag, at, cut)
    return { key = key, notes = notes, quota_tag = quota_tag, at = at, cut = cut, used = 0, newest = 0, later = 0, last = 0,
             before = 0, pushed = 0, uniform_cost = 1, gone = 0, expired = 0, header = 0, add = 0, count = 0,
             first = 1, cut_off = 0, loaded = 0 }
  end

  -- Returns the sum of the costs of the entries with these names.
  local function sum_costs(names, first, last, step)
    local sum, find, match = 0, string.find, string.match
    for i = first, last, step do
      local star = find(names[i], '*', 1, true)
      sum = sum + (star and match(names[i], '^%d+', star + 1) or 1)
    end
    return sum
  end

  -- Sums up the expired entries, which begin at `found[i]`. If they are too many for one call and their costs differ,
  -- the function removes the entries that it has summed up.
  local function sum_expired(s, found, i)
    local n = (#found - i + 1) / 2
    if #found == 1024 then n = call('ZCOUNT', s.key, '1', format('%d', s.cut)) end
    s.expired = n
    if s.uniform_cost > 0 then
      s.gone = s.uniform_cost * n
      return
    end
    if #found < 1024 then
      if n <= trims then
        trims = trims - n
        s.gone = sum_costs(found, i, #found, 2)
        return
      end
    end
    local most = math.min(n, math.floor(trims))
    if most < n then unfinished = true end
    if most < 1 then return end
    trims = trims - most
    local names = call('ZRANGE', s.key, format('%d', s.header), format('%d', s.header + most - 1))
    if most == n then
      s.gone = sum_costs(names, 1, n, 1)
      return
    end
    -- The entries of the last instant are left out, because that instant may have more entries than were read.
    local last = most
    while last > 1 and string.match(names[last], '^%x+') == string.match(names[most], '^%x+') do last = last - 1 end
    s.used, s.last = s.used - sum_costs(names, 1, last, 1), s.at
    call('ZREMRANGEBYSCORE', s.key, '1', call('ZSCORE', s.key, names[last]))
    call('ZADD', s.key, write_used(s, 0), 'u', format('-%d', s.at), 'l')
  end

  -- Reads the header and advances the state to the present: expired entries are summed up here, and removed by
  -- `save`.
  local function load(line)
    local key, notes, window, quota_tag = KEYS[line.key], KEYS[line.notes], line.window, line.quota_tag
    local at, cut, found, i, score = now, now - window, nil, nil, nil
    local s
    while true do
      found = call('ZRANGEBYSCORE', key, '-inf', format('%d', cut), 'WITHSCORES', 'LIMIT', '0', '512')
      s = blank(key, notes, quota_tag, at, cut)
      local stored
      i = 1
      while found[i] do
        local name = found[i]
        score = tonumber(found[i + 1])
        if score > 0 then break end
        if name == 'u' then s.used = math.floor(-score)
        elseif name == 'l' then s.later = -score
        elseif name == 'c' then s.created = -score
        elseif name == 'm' then s.uniform_cost = -score
        elseif #name > 1 then stored, s.newest, s.has_notes = name, math.floor(-score), score % 1 > 0 end
        i = i + 2
      end
      s.header = (i - 1) / 2
      if stored ~= quota_tag then
        check_ours(key, stored)
        s = blank(key, notes, quota_tag, at, cut)
        s.fresh, s.whole, s.replace = true, true, stored ~= nil
        return s
      end
      s.last = s.later
      if line.slice == 0 and s.newest > s.last then s.last = s.newest end
      s.before, s.pushed = s.last, s.newest
      if s.last <= at then break end
      at, cut = s.last, s.last - window
    end
    if found[i] then
      s.stale = true
      local latest = s.later > s.newest and s.later or s.newest
      if #found == 1024 and latest <= cut then
        s.gone, s.replace, s.whole, s.uniform_cost, s.has_notes = s.used, true, true, 1, false
      else
        sum_expired(s, found, i)
      end
      if s.gone > 0 then
        s.used = s.used - s.gone
        s.last = at
      end
    end
    return s
  end

  local function past(s, _, at)
    return at <= s.cut
  end

  -- Loads entries by rank, oldest first, until the `n`-th entry is loaded; returns false if there are fewer entries.
  -- Each read is larger than the one before. If the budget of the call is used up, sets `s.short` and returns false;
  -- with `one`, the first entry that counts is read even then. `sums[i]` is the total cost of the first `i` entries.
  local function fetch(s, n, size, one)
    while s.loaded < n and not s.whole do
      if not s.names then
        s.names, s.costs, s.ats, s.sums = {}, {}, {}, { [0] = 0 }
        s.start = s.header + s.expired
        s.offset = s.start
      end
      if reads < 1 and not (one and s.loaded < s.first) then
        s.short = true
        return false
      end
      size = math.min(math.max(size, s.chunk or 1), math.max(reads, 1))
      reads = reads - size
      local found = call('ZRANGE', s.key, format('%d', s.offset), format('%d', s.offset + size - 1), 'WITHSCORES')
      for i = 1, #found, 2 do
        local loaded, cost = s.loaded + 1, read_name(found[i])
        s.loaded = loaded
        s.names[loaded], s.ats[loaded], s.costs[loaded] = found[i], tonumber(found[i + 1]), cost
        s.sums[loaded] = s.sums[loaded - 1] + cost
      end
      s.offset = s.offset + size
      s.whole = #found < 2 * size
      s.chunk = size < 128 and size * 8 or 1024
    end
    return s.loaded >= n
  end

  -- Finds the stored entry to which an admission of this call is added. There is such an entry if the clock has not
  -- advanced since the last admission, or if the present time slice already has admissions.
  local function find_current(s, line)
    if s.date then return end
    local at, slice = s.at, line.slice
    local date, before = at, s.before
    if slice > 0 then
      date = at - fmod(at, slice) + slice - 1
      before = before - fmod(before, slice) + slice - 1
    end
    -- The sequence numbers of a slice start at a thousand for each microsecond since its start. No microsecond has a
    -- thousand admissions, so no sequence number is used again, even after a reset.
    s.date, s.current_cost, s.current_count = date, 0, slice > 0 and fmod(at, slice) * 1000 or 0
    if before == date and not s.fresh then
      local name = call('ZRANGEBYSCORE', s.key, date, date, 'LIMIT', 0, 1)[1]
      if name then
        s.current = name
        local cost, count = read_name(name)
        s.current_cost, s.current_count = cost, math.max(s.current_count, count)
      elseif slice == 0 then
        -- The admissions of this instant were refunded, and their entry is gone: their numbers must not be given out
        -- again.
        s.current_count = fmod(now, 1e9) * 1000
      end
    end
  end

  -- Forgets the oldest permits until at most `keep` are in use. If the budget of the call does not suffice, later calls
  -- forget the rest. Until then `used` is above the limit, but no decision changes, because the permits that are still
  -- to be forgotten are the oldest and expire first.
  local function keep_newest(s, line, keep)
    local excess = s.used - keep
    if excess <= 0 then return end
    find_current(s, line)
    s.clipped = true
    while excess > 0 and fetch(s, s.first, 16) do
      local first = s.first
      local current = s.names[first] == s.current
      local cost = s.costs[first] - s.cut_off
      local cut = cost < excess and cost or excess
      excess = excess - cut
      if current then s.current_cost = s.current_cost - cut end
      s.cut_off = s.cut_off + cut
      if cut < cost then
        if not current then s.partial = first end
        s.used = keep
        return
      end
      s.first, s.cut_off = first + 1, 0
    end
    if s.short then
      s.used = keep + excess
    else
      s.used = keep
      s.add = s.add - excess
    end
  end

  local function record(s, line, cost, times)
    find_current(s, line)
    local ordinal = s.current_count + s.count
    s.used = s.used + cost * times
    s.add = s.add + cost * times
    s.count = s.count + times
    s.newest = s.date
    s.last = s.at
    return s.date, ordinal
  end

  local function wait(s, line, cost)
    local needed = s.used + cost - line.capacity
    if needed <= 0 then return 0 end
    if s.uniform_cost > 0 and not s.clipped and not s.whole then
      -- All entries cost the same, so the entry whose expiry makes enough room is found by its rank.
      if needed <= s.used - s.add then
        local nth = needed + s.uniform_cost - 1
        local rank = format('%d', s.header + s.expired + (nth - fmod(nth, s.uniform_cost)) / s.uniform_cost - 1)
        local at = call('ZRANGE', s.key, rank, rank, 'WITHSCORES')[2]
        return at and at + line.window - s.at or line.horizon
      end
    else
      -- Skips the oldest permits, which `keep_newest` has forgotten, then finds the entry whose expiry makes enough
      -- room.
      local enough = s.first
      while fetch(s, enough, needed == 1 and 1 or 16, true) do
        local target = s.sums[s.first - 1] + s.cut_off + needed
        if s.sums[s.loaded] >= target then
          local low, high = s.first, s.loaded
          while low < high do
            local middle = (low + high - (low + high) % 2) / 2
            if s.sums[middle] >= target then high = middle else low = middle + 1 end
          end
          return s.ats[low] + line.window - s.at
        end
        enough = s.loaded + 1
      end
      if s.short then return s.ats[s.loaded] + line.window - s.at, true end
    end
    if s.add > 0 then return s.date + line.window - s.at end
    return line.horizon
  end

  local function reset(s, line)
    if s.used == 0 then return 0 end
    return s.newest + line.window - s.at
  end

  -- The first admission in each `period` sets the expiry of the key, late enough for the other admissions of the
  -- period. A time slice does not store the instant of its newest admission, so with slices every admission sets the
  -- expiry.
  local function pushes(s, line)
    return s.count > 0 and (line.slice > 0 or s.at - fmod(s.at, line.period) > s.pushed) or s.replace
  end

  -- Returns the value of `m` after this state is saved.
  local function uniform_cost_after(s)
    local cost = (s.current_cost or 0) + s.add
    if s.partial or s.current then return 0 end
    if s.fresh or s.replace then return s.count > 0 and cost or 1 end
    if s.count == 0 or cost == s.uniform_cost then return s.uniform_cost end
    return 0
  end

  -- Removes the entries before the first entry that still counts.
  local function forget(s)
    local first = s.first
    local from, to = s.ats[1], s.ats[first - 1]
    -- One instant may have several entries, so the entries of the last instant are removed by name.
    local name = 1
    if to > from then
      call('ZREMRANGEBYSCORE', s.key, format('%d', from), format('(%d', to))
      while s.ats[name] < to do name = name + 1 end
    end
    for i = name, first - 1 do call('ZREM', s.key, s.names[i]) end
  end

  -- Removes expired entries, as many as the budget of the call allows. The other expired entries stay in the key, and
  -- `u` contains their permits until a later call removes them.
  local function trim(s)
    s.stale, s.kept = false, 0
    local up_to = format('%d', s.cut)
    if s.uniform_cost > 0 and s.expired > trims then
      if trims < 1 then
        s.kept = s.uniform_cost * s.expired
        return
      end
      local rank = format('%d', s.header + trims - 1)
      up_to = call('ZRANGE', s.key, rank, rank, 'WITHSCORES')[2]
    end
    local removed = call('ZREMRANGEBYSCORE', s.key, '1', up_to)
    if s.uniform_cost > 0 then
      s.kept = s.uniform_cost * (s.expired - removed)
      trims = trims - removed
    end
  end

  local function save(s, line)
    if s.count == 0 and s.gone == 0 and not s.clipped then return end
    local key = s.key
    if s.replace then
      drop_key(key)
      s.pushed = 0
      s.kept = 0
    else
      if s.clipped and s.first > 1 then forget(s) end
      if s.stale then trim(s) end
    end
    local push = pushes(s, line)
    local name = s.count > 0
      and write_name(s.date, line.modulus, s.current_cost + s.add, s.current_count + s.count)
    if s.current and not s.replace and s.current ~= name then call('ZREM', key, s.current) end
    local members = { write_newest(s, s.has_notes or s.marks), s.quota_tag }
    local function add(score, member)
      members[#members + 1] = format('%d', score)
      members[#members + 1] = member
    end
    if name then add(s.date, name) end
    local new, uniform_cost = s.fresh or s.replace, uniform_cost_after(s)
    if s.last > s.newest or line.slice > 0 then add(-s.last, 'l') elseif new then add(0, 'l') end
    if new or uniform_cost ~= s.uniform_cost then add(-uniform_cost, 'm') end
    members[#members + 1] = write_used(s, uniform_cost)
    members[#members + 1] = 'u'
    if new and line.slice > 0 then add(-s.at, 'c') end
    if s.partial and s.partial == s.first then
      local clipped = s.names[s.first]
      local _, count = read_name(clipped)
      call('ZREM', key, clipped)
      add(s.ats[s.first], write_name(s.ats[s.first], line.modulus, s.costs[s.first] - s.cut_off, count))
    end
    call('ZADD', key, unpack(members))
    dropped[key] = nil
    if push then expire_at(key, s.at + line.ttl) end
    if s.marks then write_notes(s, line) end
  end

  -- Returns the instant of the newest entry that counts. Only few stored entries have a cost of zero and do not count:
  -- see `amend`.
  local function find_newest(key)
    local offset, size = 0, 1
    while true do
      local found = call('ZREVRANGEBYSCORE', key, '+inf', '1', 'WITHSCORES', 'LIMIT', offset, size)
      for i = 1, #found, 2 do
        if read_name(found[i]) > 0 then return tonumber(found[i + 1]) end
      end
      if #found < 2 * size then return 0 end
      offset, size = offset + size, 64
      reads = reads - size
      -- The search stops here: the newest entry that counts is not later than the last entry that was read.
      if reads < 0 then return tonumber(found[#found]) end
    end
  end

  -- Corrects the entry at `at`; the caller then adds the note of the settlement. Returns false if there is no such
  -- admission.
  local function amend(s, line, at, from, to, seq)
    local key = s.key
    local name = call('ZRANGEBYSCORE', key, at, at, 'LIMIT', 0, 1)[1]
    if not name then return false end
    local cost, count = read_name(name)
    if cost == 0 then return false end
    if seq < 1e18 then
      -- Numbers that were never given out, or were given out before the key was reset, are rejected.
      if seq >= count then return false end
      local made = at - line.slice + 1 + (seq - seq % 1000) / 1000
      if line.slice > 0 and made < (s.created or 0) then return false end
    end
    local room = MAX_TOTAL - (s.used - cost)
    local new = math.min(math.max(cost - from, 0) + to, room)
    s.used = s.used + new - cost
    call('ZREM', key, name)
    if new == 0 and at == s.newest then s.newest = s.used > 0 and find_newest(key) or 0 end
    local members = {}
    local function add(score, member)
      members[#members + 1] = score
      members[#members + 1] = member
    end
    -- An entry without permits is removed, unless other admissions may be added to it. So it stays at the present
    -- instant, and in time slices, which have few entries.
    local stays = new > 0 or at == s.at or line.slice > 0
    if stays then add(format('%d', at), write_name(at, line.modulus, new, count)) end
    -- If the entry is removed, the costs of the other entries stay uniform.
    if stays and new ~= cost then
      s.uniform_cost = 0
      add('0', 'm')
    end
    add(write_used(s, s.uniform_cost), 'u')
    add(write_newest(s, true), s.quota_tag)
    if s.last > s.newest then add(format('-%d', s.last), 'l') end
    call('ZADD', key, unpack(members))
    return true
  end

  -- Replaces the entry `old_name` at `at` by `new_name`, which counts `cost` more; `old_name` is nil for a new entry.
  local function raise(s, at, old_name, new_name, cost)
    if old_name then call('ZREM', s.key, old_name) end
    call('ZADD', s.key, format('%d', at), new_name)
    s.used = s.used + cost
    if at > s.newest then s.newest = at end
  end

  -- Writes entries back: see restore.lua. An entry that a node writes back is named `<hex>-<node>[*cost]`.
  local function restore(s, line, entries, by)
    local key, modulus, added, uniform_cost = s.key, line.modulus, 0, s.uniform_cost
    save(s, line)
    if s.fresh and s.replace then drop_key(key) end
    if s.replace then uniform_cost = 1 end
    s.gone, s.clipped, s.replace = 0, nil, false
    local empty = s.used == 0 and (s.kept or 0) == 0
    if line.slice > 0 and not by.lost and not by.new_batch(s, entries[1].at) then return 0 end
    for _, entry in ipairs(entries) do
      local at, cost = entry.at, entry.cost
      if at > s.cut then
        local base = format('%x-%s', at % modulus, by.node)
        local own, own_name, regular, all = 0, nil, 0, 0
        local found = call('ZRANGEBYSCORE', key, format('%d', at), format('%d', at))
        for _, name in ipairs(found) do
          all = all + read_name(name)
          if string.sub(name, 1, #base) == base then
            own, own_name = read_name(name), name
          elseif not string.find(name, '-', 1, true) then
            regular = read_name(name)
          end
        end
        local need
        if line.slice > 0 then
          need = by.lost and by.declared(s, at, at - line.slice + 1, all, cost) or cost
        else
          need = cost - own - (entry.admitted and regular or 0)
        end
        if need > 0 then
          local total = own + need
          raise(s, at, own_name, total == 1 and base or format('%s*%d', base, total), need)
          added = added + need
          if empty and uniform_cost > 0 and added == need then
            uniform_cost = total
          elseif total ~= uniform_cost then
            uniform_cost = 0
          end
        end
      end
    end
    if added == 0 and not s.marks then return 0 end
    if s.fresh then
      call('ZADD', key, '0', 'l')
      if line.slice > 0 then
        call('ZADD', key, format('-%d', entries[1].at - line.slice), 'c', format('-%d', s.at), 'l')
        s.last = s.at
      end
    end
    call('ZADD', key, write_used(s, uniform_cost), 'u', write_newest(s, s.has_notes or s.marks), s.quota_tag,
      uniform_cost == 0 and '0' or format('-%d', uniform_cost), 'm')
    if s.last > s.newest or line.slice > 0 then call('ZADD', key, format('-%d', s.last), 'l') end
    expire_at(key, math.max(s.at, s.newest) + line.ttl)
    if s.marks then write_notes(s, line) end
    return added
  end

  kinds[1] = { load = load, past = past, keep_newest = keep_newest, record = record, wait = wait,
               reset = reset, save = save, amend = amend, restore = restore, write_used = write_used,
               write_newest = write_newest }
end
