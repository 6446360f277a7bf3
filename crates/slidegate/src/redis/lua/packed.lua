
-- Kind 2, `sliding-window` packed: a string, a header and a ring of records in the order of their instants.
--
--   header   the mark `sgp1`, then eleven doubles: bytes a record, records there is room for, the first one,
--            how many, permits in use, newest instant that counts, last instant, oldest record's instant,
--            when the key expires, window, admissions at the newest record's instant
--   record   six bytes of time, the instant modulo 2^48; then the cost, in two bytes, or in seven in a log
--            that has met a larger one
--
-- There is one record an instant. The string is as long as its block of memory (jemalloc has four sizes per
-- power of two), so that a record is written in place and at most a fifth is room to grow.

do
  local HEADER, FIELDS, MARK = 92, '<c4ddddddddddd', 'sgp1'

  local function pack_header(s)
    return struct.pack(FIELDS, MARK, s.width, s.room, s.head, s.size, s.used, s.newest, s.last, s.oldest,
      s.expires, s.window, s.places)
  end

  local function unpack_header(s, raw)
    local mark
    mark, s.width, s.room, s.head, s.size, s.used, s.newest, s.last, s.oldest, s.expires, s.window, s.places =
      struct.unpack(FIELDS, raw)
    if mark ~= MARK then error('SGFOREIGN') end
  end

  local function write(s, at, cost)
    return struct.pack(s.width == 8 and '>I6I2' or '>I6I7', at % 2 ^ 48, cost)
  end

  -- The instant and the cost of the record at `offset` of `raw`. No instant lies after `last`.
  local function read(s, raw, offset)
    local time, cost = struct.unpack(s.width == 8 and '>I6I2' or '>I6I7', raw, offset)
    return s.latest - (s.latest - time) % 2 ^ 48, cost
  end

  local function offset_of(s, i)
    return HEADER + (s.head + i) % s.room * s.width
  end

  -- Up to `n` records from the i-th on, as they lie together in the ring: raw, and how many.
  local function records(s, i, n)
    n = math.min(n, s.size - i, s.room - (s.head + i) % s.room)
    local offset = offset_of(s, i)
    return call('GETRANGE', s.key, offset, offset + n * s.width - 1), n
  end

  local function at(s, i)
    return read(s, records(s, i, 1), 1)
  end

  -- Drops the first records for which `gone(instant, cost)` holds; true if it stopped at one.
  local function drop_while(s, gone, chunk)
    while s.size > 0 do
      local raw, n = records(s, 0, chunk)
      for i = 0, n - 1 do
        local instant, cost = read(s, raw, i * s.width + 1)
        if not gone(instant, cost) then
          s.head, s.size, s.oldest = (s.head + i) % s.room, s.size - i, instant
          return true
        end
      end
      s.head, s.size = (s.head + n) % s.room, s.size - n
      chunk = 1024
    end
    return false
  end

  local function blank(key, line)
    return { key = key, notes = KEYS[line.notes], shape = line.shape, window = line.window, width = 8, room = 0,
             head = 0, size = 0, used = 0, newest = 0, last = 0, latest = now, before = 0, oldest = 0,
             expires = 0, places = 0, gone = 0, add = 0, count = 0, at = now, cut = now - line.window,
             fresh = true }
  end

  local function load(line)
    local key = KEYS[line.key]
    local raw = call('GETRANGE', key, 0, HEADER - 1)
    local s = blank(key, line)
    if #raw == 0 then return s end
    unpack_header(s, raw)
    if s.window ~= line.window then return blank(key, line) end
    s.fresh = false
    s.before = s.last
    if s.last > s.at then s.at, s.cut = s.last, s.last - s.window end
    s.latest = s.at
    if s.size > 0 and s.oldest <= s.cut then
      local gone = 0
      if s.last <= s.cut then
        gone, s.size = s.used, 0
      else
        drop_while(s, function(instant, cost)
          if instant > s.cut then return false end
          gone = gone + cost
          return true
        end, 16)
      end
      s.gone, s.used = gone, s.used - gone
      if gone > 0 then s.last = s.at end
    end
    return s
  end

  local function past(s, _, instant)
    return instant <= s.cut
  end

  -- The record of the present instant, if the clock stood still.
  local function find_held(s)
    if s.held ~= nil then return end
    s.held = false
    if s.before == s.at and s.size > 0 then
      local instant, cost = at(s, s.size - 1)
      if instant == s.at then s.held = cost end
    end
    if not s.held then s.places = 0 end
  end

  local function keep_newest(s, _, keep)
    local excess = s.used - keep
    if excess <= 0 then return end
    find_held(s)
    local held_at = s.held and s.at
    local rest
    local stopped = drop_while(s, function(instant, cost)
      if excess == 0 or instant == held_at then return false end
      if cost > excess then
        rest = cost - excess
        return false
      end
      excess = excess - cost
      return true
    end, 16)
    if rest then
      call('SETRANGE', s.key, offset_of(s, 0), write(s, s.oldest, rest))
    elseif stopped and excess > 0 then
      local cut = math.min(excess, s.held)
      s.held, excess = s.held - cut, excess - cut
    end
    if not rest then s.add = s.add - excess end
    s.used, s.clipped = keep, true
  end

  local function record(s, _, cost, times)
    find_held(s)
    local place = s.places
    s.used = s.used + cost * times
    s.add = s.add + cost * times
    s.count = s.count + times
    s.places = s.places + times
    s.newest, s.last = s.at, s.at
    return s.at, place
  end

  local function wait(s, line, cost)
    local needed = s.used + cost - line.capacity
    if needed <= 0 then return 0 end
    if needed == 1 and s.size > 0 then
      local instant, held = at(s, 0)
      if held > 0 then return instant + s.window - s.at end
    end
    local freed, i, size = 0, 0, s.held and s.size - 1 or s.size
    while i < size do
      local raw, n = records(s, i, math.min(1024, size - i))
      for j = 0, n - 1 do
        local instant, held = read(s, raw, j * s.width + 1)
        freed = freed + held
        if freed >= needed then return instant + s.window - s.at end
      end
      i = i + n
    end
    if s.held or s.add > 0 then return s.window end
    return line.horizon
  end

  local function reset(s)
    if s.used == 0 then return 0 end
    return s.newest + s.window - s.at
  end

  -- Records that fit the block of memory that `n` need.
  local function room_for(s, n)
    local bytes, block = HEADER + n * s.width + 10, 128
    while block * 2 < bytes do block = block * 2 end
    local step = block / 4
    while block < bytes do block = block + step end
    return (block - 10 - HEADER - (block - 10 - HEADER) % s.width) / s.width
  end

  -- Writes the log anew with room for `n` records `wide` enough; `push` sets when it expires.
  local function rebuild(s, n, width, last_record)
    local parts, i = {}, 0
    while i < s.size do
      local raw, got = records(s, i, s.size - i)
      if width ~= s.width then
        local wide = {}
        for j = 0, got - 1 do
          local instant, cost = read(s, raw, j * s.width + 1)
          wide[#wide + 1] = struct.pack('>I6I7', instant % 2 ^ 48, cost)
        end
        raw = table.concat(wide)
      end
      parts[#parts + 1] = raw
      i = i + got
    end
    s.width = width
    s.room, s.head = room_for(s, n), 0
    if last_record then
      parts[#parts + 1] = write(s, last_record[1], last_record[2])
      s.size = s.size + 1
    end
    local body = table.concat(parts)
    call('SET', s.key, pack_header(s) .. body .. string.rep('\0', s.room * s.width - #body))
    if s.fresh then call('UNLINK', s.notes) end
    call('PEXPIREAT', s.key, math.ceil(s.expires / 1000))
  end

  local function save_notes(s, line)
    if not s.marks then return end
    call('ZREMRANGEBYSCORE', s.notes, '-inf', s.cut)
    call('ZADD', s.notes, unpack(s.marks))
    call('PEXPIREAT', s.notes, math.ceil((s.at + line.life) / 1000))
  end

  local function save(s, line)
    if s.count == 0 and s.gone == 0 and not s.clipped then return end
    local push = s.expires < s.at + line.least
    if push then s.expires = s.at + line.life end
    local cost = s.add + (s.held or 0)
    local width = cost > 65535 and 13 or s.width
    if s.count > 0 and s.size == 0 then s.oldest = s.at end
    if s.count == 0 then
      call('SETRANGE', s.key, 0, pack_header(s))
    elseif s.held then
      if width ~= s.width then rebuild(s, s.size, width) end
      call('SETRANGE', s.key, offset_of(s, s.size - 1), write(s, s.at, cost))
      call('SETRANGE', s.key, 0, pack_header(s))
    elseif width ~= s.width or s.size >= s.room or s.room > 64 and s.size * 4 < s.room then
      rebuild(s, s.size + 1, s.size == 0 and (cost > 65535 and 13 or 8) or width, { s.at, cost })
      push = false
    else
      call('SETRANGE', s.key, offset_of(s, s.size), write(s, s.at, cost))
      s.size = s.size + 1
      call('SETRANGE', s.key, 0, pack_header(s))
    end
    if push then call('PEXPIREAT', s.key, math.ceil(s.expires / 1000)) end
    save_notes(s, line)
  end

  local function amend(s, line, instant, from, to, seq)
    local low, high = 0, s.size
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if at(s, middle) < instant then low = middle + 1 else high = middle end
    end
    if low == s.size then return false end
    local found, cost = at(s, low)
    if found ~= instant or cost == 0 then return false end
    if low == s.size - 1 and seq < 1e18 and seq >= s.places then return false end
    local new = math.min(math.max(cost - from, 0) + to, MAX_TOTAL - (s.used - cost))
    s.used = s.used + new - cost
    if new > 65535 and s.width == 8 then rebuild(s, s.size, 13) end
    call('SETRANGE', s.key, offset_of(s, low), write(s, instant, new))
    if new == 0 and instant == s.newest then
      s.newest = 0
      for i = low - 1, 0, -1 do
        local earlier, counted = at(s, i)
        if counted > 0 then
          s.newest = earlier
          break
        end
      end
    end
    call('SETRANGE', s.key, 0, pack_header(s))
    return true
  end

  local function line_of(log, notes, buffer)
    local raw = call('GETRANGE', KEYS[log], 0, HEADER - 1)
    if #raw == 0 then return nil end
    local s = {}
    unpack_header(s, raw)
    local line = { key = log, notes = notes, kind = 2, slice = 0, window = s.window, horizon = s.window,
                   capacity = MAX_TOTAL, least = s.window, life = s.window + buffer, modulus = modulus_of(2, s.window) }
    return line
  end

  kinds[2] = { load = load, past = past, keep_newest = keep_newest, record = record, wait = wait,
               reset = reset, save = save, amend = amend, line_of = line_of }
end
