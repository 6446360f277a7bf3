
-- Kind 1, `sliding-window` and `time-slice`: one sorted set.
--
--   score           member            meaning
--   -total          u                 permits in use; a quarter more if `m` is not 1, half more if `l` is later
--   -instant        <shape>           when the newest entry that counts was recorded, and half more if this count has
--                                     notes; its name is the algorithm and the window
--   -instant        l                 when something was last recorded or seen to leave, if later than that
--   -cost           m                 what every entry costs; 0 if they differ
--   -instant        c                 when the key was created (`time-slice`)
--   instant         <hex>[*cost[.n]]  what was admitted at that instant: permits, and the number of the next
--                                     admission of that instant, if it is not the second
--   instant         <hex>-<node>[*cost]   what a node had admitted at that instant and wrote back: see heal.lua
--
-- There is one entry an instant. Its name is the instant modulo a power of 16 above twice the window, so it
-- is short and unique while it counts. One range from the bottom to where the window begins reads the header and
-- what has left together. Notes on single admissions are in `<key>:notes`: see notes.lua.

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

  -- The total, and whether there is more to know: so that most decisions need not look.
  local function write_used(s, alike)
    local more = (alike == 1 and 0 or 0.25) + (s.last > s.newest and 0.5 or 0)
    return more == 0 and format('-%d', s.used) or format('-%.2f', s.used + more)
  end

  -- When the newest was recorded, and whether there are notes.
  local function write_newest(s, has_notes)
    return format(has_notes and '-%d.5' or '-%d', s.newest)
  end

  local function blank(key, notes, shape, at, cut)
    return { key = key, notes = notes, shape = shape, at = at, cut = cut, used = 0, newest = 0, later = 0, last = 0,
             before = 0, pushed = 0, alike = 1, gone = 0, add = 0, count = 0, first = 1, loaded = 0 }
  end

  -- Reads the header, and rolls to the present: what has left is summed up, and trimmed when saved.
  local function load(line)
    local key, notes, window, shape = KEYS[line.key], KEYS[line.notes], line.window, line.shape
    local at, cut, found, i, score = now, now - window, nil, nil, nil
    local s
    while true do
      found = call('ZRANGEBYSCORE', key, '-inf', format('%d', cut), 'WITHSCORES', 'LIMIT', '0', '512')
      s = blank(key, notes, shape, at, cut)
      local stored
      i = 1
      while found[i] do
        local name = found[i]
        score = tonumber(found[i + 1])
        if score > 0 then break end
        if name == 'u' then s.used = math.floor(-score)
        elseif name == 'l' then s.later = -score
        elseif name == 'c' then s.created = -score
        elseif name == 'm' then s.alike = -score
        elseif #name > 1 then stored, s.newest, s.has_notes = name, math.floor(-score), score % 1 > 0 end
        i = i + 2
      end
      if stored ~= shape then
        check_ours(key, stored)
        s = blank(key, notes, shape, at, cut)
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
        s.gone, s.replace, s.whole, s.alike, s.has_notes = s.used, true, true, 1, false
      else
        local offset = 0
        while true do
          while found[i] do
            s.gone = s.gone + read_name(found[i])
            i = i + 2
          end
          if #found < 1024 then break end
          offset = offset + 512
          found, i = call('ZRANGE', key, format('%d', offset), format('%d', offset + 511), 'WITHSCORES'), 1
          -- By rank it may reach into what still counts.
          local last = #found
          while last > 0 and tonumber(found[last]) > cut do
            found[last], found[last - 1], last = nil, nil, last - 2
          end
        end
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

  -- Makes sure that the n-th oldest entry is loaded, if there is one. Reads by rank, and more each time.
  local function fetch(s, n, size)
    while s.loaded < n and not s.whole do
      if not s.names then
        s.names, s.costs, s.ats = {}, {}, {}
        s.offset = call('ZCOUNT', s.key, '-inf', format('%d', s.cut))
      end
      size = math.max(size, s.chunk or 1)
      local found = call('ZRANGE', s.key, format('%d', s.offset), format('%d', s.offset + size - 1), 'WITHSCORES')
      for i = 1, #found, 2 do
        local loaded = s.loaded + 1
        s.loaded = loaded
        s.names[loaded], s.ats[loaded] = found[i], tonumber(found[i + 1])
        s.costs[loaded] = read_name(found[i])
      end
      s.offset = s.offset + size
      s.whole = #found < 2 * size
      s.chunk = size < 128 and size * 8 or 1024
    end
    return s.loaded >= n
  end

  -- What was recorded earlier at the instant that is recorded at now: a clock that stood still, or a slice.
  local function find_held(s, line)
    if s.date then return end
    local at, slice = s.at, line.slice
    local date, before = at, s.before
    if slice > 0 then
      date = at - fmod(at, slice) + slice - 1
      before = before - fmod(before, slice) + slice - 1
    end
    -- Numbers of one slice never come again, also after a reset: no microsecond has a thousand admissions.
    s.date, s.held_cost, s.held_count = date, 0, slice > 0 and fmod(at, slice) * 1000 or 0
    if before == date and not s.fresh then
      local name = call('ZRANGEBYSCORE', s.key, date, date, 'LIMIT', 0, 1)[1]
      if name then
        s.held = name
        local cost, count = read_name(name)
        s.held_cost, s.held_count = cost, math.max(s.held_count, count)
      elseif slice == 0 then
        -- What was recorded now was refunded: its numbers must not come again.
        s.held_count = fmod(now, 1e9) * 1000
      end
    end
  end

  -- Forgets the oldest permits until no more than `keep` are in use.
  local function keep_newest(s, line, keep)
    local excess = s.used - keep
    if excess <= 0 then return end
    find_held(s, line)
    s.clipped = s.clipped or {}
    s.used = keep
    while excess > 0 and fetch(s, s.first, 16) do
      local first = s.first
      local name, cost = s.names[first], s.costs[first]
      if name == s.held then cost = s.held_cost end
      local cut = cost < excess and cost or excess
      excess = excess - cut
      if name == s.held then
        s.held_cost = cost - cut
      elseif cut > 0 then
        s.clipped[name] = { s.ats[first], cost - cut, read_name(name) }
        s.costs[first] = cost - cut
      end
      if cut < cost then return end
      s.first = first + 1
    end
    s.add = s.add - excess
  end

  local function record(s, line, cost, times)
    find_held(s, line)
    local place = s.held_count + s.count
    s.used = s.used + cost * times
    s.add = s.add + cost * times
    s.count = s.count + times
    s.newest = s.date
    s.last = s.at
    return s.date, place
  end

  local function wait(s, line, cost)
    local needed = s.used + cost - line.capacity
    if needed <= 0 then return 0 end
    local freed, i = 0, s.first
    while fetch(s, i, needed == 1 and 1 or 16) do
      freed = freed + (s.names[i] == s.held and s.held_cost or s.costs[i])
      if freed >= needed then return s.ats[i] + line.window - s.at end
      i = i + 1
    end
    if s.add > 0 then return s.date + line.window - s.at end
    return line.horizon
  end

  local function reset(s, line)
    if s.used == 0 then return 0 end
    return s.newest + line.window - s.at
  end

  -- The first admission in each `period` sets when the key expires: late enough for the others. That of a
  -- slice is not known, so there every one does.
  local function pushes(s, line)
    return s.count > 0 and (line.slice > 0 or s.at - fmod(s.at, line.period) > s.pushed) or s.replace
  end

  -- What `m` says after this is saved.
  local function alike_after(s)
    local cost = (s.held_cost or 0) + s.add
    if s.clipped or s.held then return 0 end
    if s.fresh or s.replace then return s.count > 0 and cost or 1 end
    if s.count == 0 or cost == s.alike then return s.alike end
    return 0
  end

  local function save(s, line)
    if s.count == 0 and s.gone == 0 and not s.clipped then return end
    local key = s.key
    if s.replace then
      call('UNLINK', key)
      s.pushed = 0
    elseif s.stale then
      call('ZREMRANGEBYSCORE', key, '1', format('%d', s.cut))
    end
    local push = pushes(s, line)
    local name = s.count > 0
      and write_name(s.date, line.modulus, s.held_cost + s.add, s.held_count + s.count)
    if s.held and not s.replace and s.held ~= name then call('ZREM', key, s.held) end
    local members = { write_newest(s, s.has_notes or s.marks), s.shape }
    local function add(score, member)
      members[#members + 1] = format('%d', score)
      members[#members + 1] = member
    end
    if name then add(s.date, name) end
    local new, alike = s.fresh or s.replace, alike_after(s)
    if s.last > s.newest or line.slice > 0 then add(-s.last, 'l') elseif new then add(0, 'l') end
    if new or alike ~= s.alike then add(-alike, 'm') end
    members[#members + 1] = write_used(s, alike)
    members[#members + 1] = 'u'
    if new and line.slice > 0 then add(-s.at, 'c') end
    for clipped, left in pairs(s.clipped or {}) do
      call('ZREM', key, clipped)
      if left[2] > 0 then
        call('ZADD', key, left[1], write_name(left[1], line.modulus, left[2], left[4]))
      end
    end
    call('ZADD', key, unpack(members))
    if push then call('PEXPIREAT', key, format('%d', math.ceil((s.at + line.life) / 1000))) end
    if s.marks then write_notes(s, line) end
  end

  -- The newest entry that counts. There are few that do not: see amend.
  local function find_newest(key)
    local offset, size = 0, 1
    while true do
      local found = call('ZREVRANGEBYSCORE', key, '+inf', '1', 'WITHSCORES', 'LIMIT', offset, size)
      for i = 1, #found, 2 do
        if read_name(found[i]) > 0 then return tonumber(found[i + 1]) end
      end
      if #found < 2 * size then return 0 end
      offset, size = offset + size, 64
    end
  end

  -- Corrects what is recorded at `at`, which is noted next; false if nothing is.
  local function amend(s, line, at, from, to, seq)
    local key = s.key
    local name = call('ZRANGEBYSCORE', key, at, at, 'LIMIT', 0, 1)[1]
    if not name then return false end
    local cost, count = read_name(name)
    if cost == 0 then return false end
    if seq < 1e18 then
      -- Never given out, or before the key was reset.
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
    -- A refunded instant is forgotten, unless others may join it: the present one, and slices, which are few.
    local stays = new > 0 or at == s.at or line.slice > 0
    if stays then add(format('%d', at), write_name(at, line.modulus, new, count)) end
    -- Without it the others are still alike.
    if stays and new ~= cost then
      s.alike = 0
      add('0', 'm')
    end
    add(write_used(s, s.alike), 'u')
    add(write_newest(s, true), s.shape)
    if s.last > s.newest then add(format('-%d', s.last), 'l') end
    call('ZADD', key, unpack(members))
    return true
  end

  -- Adds `cost` to what `name` counts at `at`; a new entry if there is none.
  local function raise(s, at, name, held, cost)
    if name then call('ZREM', s.key, name) end
    call('ZADD', s.key, format('%d', at), held)
    s.used = s.used + cost
    if at > s.newest then s.newest = at end
  end

  -- See heal.lua. An entry that a node writes back is named `<hex>-<node>[*cost]`.
  local function heal(s, line, entries, by)
    local key, modulus, added, alike = s.key, line.modulus, 0, s.alike
    save(s, line)
    if s.fresh and s.replace then call('UNLINK', key) end
    if s.replace then alike = 1 end
    s.gone, s.clipped, s.replace = 0, nil, false
    local empty = s.used == 0
    if line.slice > 0 and not by.lost and not by.new_batch(s, entries[1].at) then return 0 end
    for _, entry in ipairs(entries) do
      local at, cost = entry.at, entry.cost
      if at > s.cut then
        local base = format('%x-%s', at % modulus, by.node)
        local own, held, regular, all = 0, nil, 0, 0
        local found = call('ZRANGEBYSCORE', key, format('%d', at), format('%d', at))
        for _, name in ipairs(found) do
          all = all + read_name(name)
          if string.sub(name, 1, #base) == base then
            own, held = read_name(name), name
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
          raise(s, at, held, total == 1 and base or format('%s*%d', base, total), need)
          added = added + need
          if empty and alike > 0 and added == need then alike = total elseif total ~= alike then alike = 0 end
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
    call('ZADD', key, write_used(s, alike), 'u', write_newest(s, s.has_notes or s.marks), s.shape,
      alike == 0 and '0' or format('-%d', alike), 'm')
    if s.last > s.newest or line.slice > 0 then call('ZADD', key, format('-%d', s.last), 'l') end
    call('PEXPIREAT', key, format('%d', math.ceil((math.max(s.at, s.newest) + line.life) / 1000)))
    if s.marks then write_notes(s, line) end
    return added
  end

  kinds[1] = { load = load, past = past, keep_newest = keep_newest, record = record, wait = wait,
               reset = reset, save = save, amend = amend, heal = heal, write_used = write_used,
               write_newest = write_newest }
end
