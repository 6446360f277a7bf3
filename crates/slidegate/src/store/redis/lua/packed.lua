
-- Counter kind 2, `sliding-window` with `encoding: packed`: a string.
--
--   header   108 bytes: the mark `sgp1`, `LogShape`, and `LogCounts`, which every admission changes (codec/record.rs)
--   recent   the newest records, up to 16
--   front    the oldest records, up to 16
--   ring     the records between the front and the recent records
--
-- A record is the instant modulo 2^48, in six bytes, and the cost in two bytes, or in seven bytes once the log has
-- recorded a cost above 65535. A log that is too long to be rewritten in one call keeps costs of two bytes. In such a
-- log a cost above 65535 is written as 65535, and the note `cost:<hex>` has the negated cost as its score.
--
-- Invariant: there is one record per instant, and records are in the order of their instants: front, ring, recent.
--
-- Cost: most decisions read and write only the header, the recent records and the front; the ring is needed once in
-- sixteen admissions. The string fills its block of memory (jemalloc has four block sizes per power of two), so a
-- record is written in place, and at most a fifth of the string is unused.

do
  local MARK, BUFFER, HEADER = 'sgp1', 16, 4 + LogShape.LogCounts.SIZE
  -- The largest cost that two bytes hold, and the maximum number of records of a log that is rewritten for a larger
  -- cost.
  local WIDE, MOST_WIDENED = 65535, 4096

  local function pack_header(s)
    return MARK .. LogShape.LogCounts.pack({
      width = s.width, room = s.room, head = s.head, size = s.size, log_window = s.window, to = #s.front / s.width,
      used = s.used, newest = s.newest, last = s.last, oldest = s.oldest, next_ordinal = s.next_ordinal, from = 0,
      recent = #s.recent / s.width,
    })
  end

  local function unpack_header(s, raw)
    if #raw < HEADER or string.sub(raw, 1, 4) ~= MARK then error('SGFOREIGN') end
    local width, room, head, size, log_window, to, used, newest, last, oldest, next_ordinal, from, recent =
      LogShape.LogCounts.at(raw, 4)
    s.width, s.room, s.head, s.size, s.window, s.used = width, room, head, size, log_window, used
    s.newest, s.last, s.oldest, s.next_ordinal = newest, last, oldest, next_ordinal
    local front = HEADER + BUFFER * s.width
    s.recent = string.sub(raw, HEADER + 1, HEADER + recent * s.width)
    s.front = string.sub(raw, front + from * s.width + 1, front + to * s.width)
  end

  local function cost_name(at)
    return format('cost:%x', at)
  end

  -- Returns the bytes of a record. `before` is the cost that the record had until now.
  local function write(s, line, at, cost, before)
    if s.width ~= 8 then return struct.pack('>I6I7', at % 2 ^ 48, cost) end
    if cost > WIDE then
      call('ZADD', s.notes, format('-%d', cost), cost_name(at))
      expire_at(s.notes, math.max(s.at, s.newest) + line.ttl)
    elseif before > WIDE then
      call('ZREM', s.notes, cost_name(at))
    end
    return struct.pack('>I6I2', at % 2 ^ 48, math.min(cost, WIDE))
  end

  -- Returns the instant and the cost of the record at `offset` of `raw`. No instant is later than `s.latest`.
  local function read(s, raw, offset)
    local time, cost = struct.unpack(s.width == 8 and '>I6I2' or '>I6I7', raw, offset)
    local at = s.latest - (s.latest - time) % 2 ^ 48
    if cost == WIDE and s.width == 8 and s.notes then cost = -(call('ZSCORE', s.notes, cost_name(at)) or -WIDE) end
    return at, cost
  end

  -- Schedules the cost note of a dropped record for removal when the log is saved.
  local function drop_cost_note(s, at, cost)
    if cost > WIDE and s.width == 8 then
      s.dropped = s.dropped or {}
      s.dropped[#s.dropped + 1] = cost_name(at)
    end
  end

  local function ring_offset(s, i)
    return HEADER + 2 * BUFFER * s.width + (s.head + i) % s.room * s.width
  end

  local function size(s)
    return (#s.front + #s.recent) / s.width + s.size
  end

  -- Returns up to `n` contiguous records from the i-th on: the raw bytes, and how many records.
  local function records(s, i, n)
    local width, front = s.width, #s.front / s.width
    if i < front then
      n = math.min(n, front - i)
      return string.sub(s.front, i * width + 1, (i + n) * width), n
    end
    i = i - front
    if i < s.size then
      n = math.min(n, s.size - i, s.room - (s.head + i) % s.room)
      local offset = ring_offset(s, i)
      return call('GETRANGE', s.key, format('%d', offset), format('%d', offset + n * width - 1)), n
    end
    i = i - s.size
    n = math.min(n, #s.recent / width - i)
    return string.sub(s.recent, i * width + 1, (i + n) * width), n
  end

  local function at(s, i)
    return read(s, records(s, i, 1), 1)
  end

  -- Writes another cost into the i-th record.
  local function set(s, line, i, instant, cost, before)
    local width, front, raw = s.width, #s.front / s.width, write(s, line, instant, cost, before)
    local function splice(text, j)
      return string.sub(text, 1, j * width) .. raw .. string.sub(text, (j + 1) * width + 1)
    end
    if i < front then
      s.front = splice(s.front, i)
    elseif i < front + s.size then
      call('SETRANGE', s.key, format('%d', ring_offset(s, i - front)), raw)
    else
      s.recent = splice(s.recent, i - front - s.size)
    end
  end

  -- Drops the `n` oldest records.
  local function drop(s, n)
    local front = math.min(n, #s.front / s.width)
    s.front = string.sub(s.front, front * s.width + 1)
    n = n - front
    local ring = math.min(n, s.size)
    if ring > 0 then s.head, s.size = (s.head + ring) % s.room, s.size - ring end
    s.recent = string.sub(s.recent, (n - ring) * s.width + 1)
  end

  -- Returns the number of records up to an instant, by binary search between the bounds `low` and `high`.
  local function count_until(s, instant, low, high)
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if at(s, middle) <= instant then low = middle + 1 else high = middle end
    end
    return low
  end

  -- Returns how many of the oldest records have expired.
  local function count_gone(s)
    local all, low, high = size(s), 0, 1
    while high <= all and at(s, high - 1) <= s.cut do low, high = high, high * 2 end
    return count_until(s, s.cut, low, math.min(high - 1, all))
  end

  -- Returns the total cost of the `n` oldest records, which the caller drops next.
  local function sum_oldest(s, n)
    local sum, i, width, unpack = 0, 0, s.width, struct.unpack
    local cost_of, first = width == 8 and '>I2' or '>I7', 7
    while i < n do
      local raw, got = records(s, i, math.min(1024, n - i))
      for offset = first, (got - 1) * width + first, width do
        local cost = unpack(cost_of, raw, offset)
        if cost == WIDE then
          local at
          at, cost = read(s, raw, offset - 6)
          drop_cost_note(s, at, cost)
        end
        sum = sum + cost
      end
      i = i + got
    end
    return sum
  end

  -- Drops the oldest records while `gone(instant, cost)` is true and the budget of the call allows it. Returns whether
  -- records are left, and whether the budget was used up.
  local function drop_while(s, gone)
    local chunk = BUFFER
    while size(s) > 0 do
      if reads < 1 then
        s.oldest = at(s, 0)
        return true, true
      end
      -- A function is called for each record, so each record costs four times as much as a record that is only read.
      local raw, n = records(s, 0, math.min(chunk, math.ceil(reads) * 2))
      reads = reads - n / 2
      for i = 0, n - 1 do
        local instant, cost = read(s, raw, i * s.width + 1)
        if not gone(instant, cost) then
          drop(s, i)
          s.oldest = instant
          return true
        end
      end
      drop(s, n)
      chunk = 1024
    end
    return false, false
  end

  -- Writes the header, the recent records and the front. If the front is empty, first moves the oldest records into it,
  -- so that they are next to the header.
  local function write_header(s)
    if s.front == '' and s.size > 0 then
      local raw, n = records(s, 0, BUFFER)
      s.front, s.head, s.size = raw, (s.head + n) % s.room, s.size - n
    elseif s.front == '' then
      s.front, s.recent = s.recent, ''
    end
    for _, name in ipairs(s.dropped or {}) do call('ZREM', s.notes, name) end
    s.dropped = nil
    local gap = BUFFER * s.width - #s.recent
    call('SETRANGE', s.key, '0', pack_header(s) .. s.recent .. string.rep('\0', gap) .. s.front)
  end

  local function blank(key, line)
    return { key = key, notes = KEYS[line.notes], quota_tag = line.quota_tag, window = line.window, width = 8, room = 0,
             head = 0, size = 0, front = '', recent = '', used = 0, newest = 0, last = 0, latest = now,
             before = 0, pushed = 0, oldest = 0, next_ordinal = 0, gone = 0, add = 0, count = 0, at = now,
             cut = now - line.window, fresh = true }
  end

  local function load(line)
    local key = KEYS[line.key]
    local raw = call('GETRANGE', key, '0', '523')
    local s = blank(key, line)
    if #raw == 0 then return s end
    unpack_header(s, raw)
    if s.window ~= line.window then return blank(key, line) end
    s.fresh, s.has_notes = false, true
    s.before, s.pushed = s.last, s.newest
    if s.last > s.at then s.at, s.cut = s.last, s.last - s.window end
    s.latest = s.at
    if s.oldest <= s.cut and size(s) > 0 then
      local gone, part = 0, false
      if s.last <= s.cut then
        gone, s.size, s.front, s.recent = s.used, 0, '', ''
        s.emptied = true
      else
        local n = count_gone(s)
        -- Summing up a record takes a quarter of the time that an entry of a sorted set takes.
        local most = 4 * trims
        if n > most then
          unfinished, part = true, true
          if most < 1 then return s end
          n = most
        end
        trims = trims - n / 4
        gone = sum_oldest(s, n)
        drop(s, n)
        if size(s) > 0 then s.oldest = at(s, 0) end
      end
      s.gone, s.used = gone, s.used - gone
      if gone > 0 then s.last = s.at end
      if part then write_header(s) end
    end
    return s
  end

  local function past(s, _, instant)
    return instant <= s.cut
  end

  -- Finds the record of the present instant, which exists if the clock has not advanced since the last admission. Sets
  -- `s.current` to the cost of that record, or to false.
  local function find_current(s)
    if s.current ~= nil then return end
    s.current = false
    if s.before == s.at and size(s) > 0 then
      local instant, cost = at(s, size(s) - 1)
      if instant == s.at then s.current, s.current_before = cost, cost end
    end
    if not s.current then s.next_ordinal = 0 end
  end

  local function keep_newest(s, line, keep)
    local excess = s.used - keep
    if excess <= 0 then return end
    find_current(s)
    local current_at = s.current and s.at
    local rest, before
    local stopped, short = drop_while(s, function(instant, cost)
      if excess == 0 or instant == current_at then return false end
      if cost > excess then
        rest, before = cost - excess, cost
        return false
      end
      excess = excess - cost
      drop_cost_note(s, instant, cost)
      return true
    end)
    s.clipped = true
    if short then
      -- Later calls forget the other permits: see `keep_newest` in zset.lua.
      s.short, s.used = true, keep + excess
      return
    end
    if rest then
      set(s, line, 0, s.oldest, rest, before)
    elseif stopped and excess > 0 then
      local cut = math.min(excess, s.current)
      s.current, excess = s.current - cut, excess - cut
    end
    if not rest then s.add = s.add - excess end
    s.used = keep
  end

  local function record(s, _, cost, times)
    find_current(s)
    local ordinal = s.next_ordinal
    s.used = s.used + cost * times
    s.add = s.add + cost * times
    s.count = s.count + times
    s.next_ordinal = s.next_ordinal + times
    s.newest, s.last = s.at, s.at
    return s.at, ordinal
  end

  local function wait(s, line, cost)
    local needed = s.used + cost - line.capacity
    if needed <= 0 then return 0 end
    local freed, i, n, chunk = 0, 0, size(s) - (s.current and 1 or 0), BUFFER
    local width, unpack = s.width, struct.unpack
    local cost_of = width == 8 and '>I2' or '>I7'
    while i < n do
      if reads < 1 and i > 0 then return at(s, i - 1) + s.window - s.at, true end
      -- The first record is read even if the budget is used up.
      local raw, got = records(s, i, math.min(chunk, n - i, math.max(1, math.ceil(reads) * 8)))
      reads = reads - got / 8
      for j = 0, got - 1 do
        local cost = unpack(cost_of, raw, j * width + 7)
        if cost == WIDE then
          local _
          _, cost = read(s, raw, j * width + 1)
        end
        freed = freed + cost
        if freed >= needed then return read(s, raw, j * width + 1) + s.window - s.at end
      end
      i, chunk = i + got, 1024
    end
    if s.current or s.add > 0 then return s.window end
    return line.horizon
  end

  local function reset(s)
    if s.used == 0 then return 0 end
    return s.newest + s.window - s.at
  end

  -- Returns how many records the ring can hold in the block of memory that `n` records need.
  local function room_for(width, n)
    local fixed = HEADER + 2 * BUFFER * width
    local bytes, block = fixed + n * width + 10, 128
    while block * 2 < bytes do block = block * 2 end
    local step = block / 4
    while block < bytes do block = block + step end
    return (block - 10 - fixed - (block - 10 - fixed) % width) / width
  end

  -- Rewrites the log with all records in `parts` and room for `n`. The string has its final length from the start,
  -- and each part is copied into it once: Lua is slow at concatenating long strings.
  local function write_log(s, line, parts, n, width)
    local bytes, front, i, from = 0, '', 1, 1
    for j = 1, #parts do bytes = bytes + #parts[j] end
    while parts[i] and #front < BUFFER * width do
      local piece = string.sub(parts[i], 1, BUFFER * width - #front)
      front = front .. piece
      if #piece == #parts[i] then i = i + 1 else from = #piece + 1 end
    end
    s.width, s.head, s.room = width, 0, room_for(width, n)
    s.front, s.recent, s.size = front, '', (bytes - #front) / width
    local offset = HEADER + 2 * BUFFER * width
    -- SET replaces the key: to remove it first could fail (see `is_here` in prelude.lua). SET writes the final length,
    -- because a string that SETRANGE makes longer takes twice its length in memory. SET also sets the expiry, because
    -- other writes follow: a key whose expiry passes during a script exists until the script ends, but PEXPIRE could
    -- remove the key at once.
    local left = math.max(s.at, s.newest) + line.ttl - now
    call('SET', s.key, string.rep('\0', offset + s.room * width), 'PX', format('%d', math.ceil(left / 1000)))
    while parts[i] do
      local piece = from > 1 and string.sub(parts[i], from) or parts[i]
      call('SETRANGE', s.key, format('%d', offset), piece)
      offset, i, from = offset + #piece, i + 1, 1
    end
    call('SETRANGE', s.key, '0', pack_header(s) .. string.rep('\0', BUFFER * width) .. front)
    if s.fresh then call('UNLINK', s.notes) end
    s.fresh, s.has_notes = false, true
  end

  -- Converts records of eight bytes to records of thirteen.
  local function widen(s, raw, n)
    local wide = {}
    for i = 0, n - 1 do
      local instant, cost = read(s, raw, i * 8 + 1)
      drop_cost_note(s, instant, cost)
      wide[i + 1] = struct.pack('>I6I7', instant % 2 ^ 48, cost)
    end
    return table.concat(wide)
  end

  -- Rewrites the log with the same records, in records of `width` bytes.
  local function rebuild(s, line, n, width)
    local parts, i, all = {}, 0, size(s)
    while i < all do
      local raw, got = records(s, i, all - i)
      if width ~= s.width then raw = widen(s, raw, got) end
      parts[#parts + 1] = raw
      i = i + got
    end
    write_log(s, line, parts, n, width)
  end

  -- Moves the recent records into the ring, which has room for them.
  local function flush(s)
    local recent = s.recent
    while #recent > 0 do
      local together = math.min(#recent / s.width, s.room - (s.head + s.size) % s.room)
      call('SETRANGE', s.key, format('%d', ring_offset(s, s.size)), string.sub(recent, 1, together * s.width))
      s.size = s.size + together
      recent = string.sub(recent, together * s.width + 1)
    end
    s.recent = ''
  end

  -- Removes the cost notes. Returns the result of `is_here` for the notes key.
  local function empty(s)
    s.emptied = false
    call('ZREMRANGEBYSCORE', s.notes, '-inf', '-1')
    return is_here(s.notes)
  end

  local function save(s, line)
    if s.count == 0 and s.gone == 0 and not s.clipped then return end
    local cost = s.add + (s.current or 0)
    local width = cost > WIDE and size(s) <= MOST_WIDENED and 13 or s.width
    if size(s) == 0 and s.count > 0 then
      s.oldest = s.at
      width = cost > WIDE and 13 or 8
    end
    if s.emptied then empty(s) end
    local all = size(s) + 1
    local shrinks = s.room > 64 and all * 4 < s.room
    local adds = s.count > 0 and not s.current
    local full = adds and #s.recent == BUFFER * s.width
    if s.fresh or width ~= s.width or shrinks or full and s.size + BUFFER > s.room then
      rebuild(s, line, all + (s.room > 0 and BUFFER or 0), width)
      s.pushed = s.at
    elseif full then
      flush(s)
    end
    if adds then
      s.recent = s.recent .. write(s, line, s.at, cost, 0)
    elseif s.current then
      set(s, line, size(s) - 1, s.at, cost, s.current_before)
    end
    write_header(s)
    if s.count > 0 and s.at - fmod(s.at, line.period) > s.pushed then
      expire_at(s.key, s.at + line.ttl)
    end
    if s.marks then write_notes(s, line) end
  end

  local function amend(s, line, instant, from, to, seq)
    local low = count_until(s, instant - 1, 0, size(s))
    if low == size(s) then return false end
    local found, cost = at(s, low)
    if found ~= instant or cost == 0 then return false end
    if low == size(s) - 1 and seq < 1e18 and seq >= s.next_ordinal then return false end
    local new = math.min(math.max(cost - from, 0) + to, MAX_TOTAL - (s.used - cost))
    s.used = s.used + new - cost
    if new > WIDE and s.width == 8 and size(s) <= MOST_WIDENED then rebuild(s, line, size(s) + BUFFER, 13) end
    set(s, line, low, instant, new, cost)
    if new == 0 and instant == s.newest then
      s.newest = 0
      local above = low
      while s.used > 0 and s.newest == 0 and above > 0 do
        if reads < 1 then
          -- The search stops here: the newest record that counts is not later than this record.
          s.newest = at(s, above - 1)
          break
        end
        reads = reads - 64
        local from = math.max(above - 512, 0)
        local i = from
        while i < above do
          local raw, n = records(s, i, above - i)
          for j = 0, n - 1 do
            local earlier, counted = read(s, raw, j * s.width + 1)
            if counted > 0 then s.newest = earlier end
          end
          i = i + n
        end
        above = from
      end
    end
    write_header(s)
    return true
  end

  -- Writes entries back: see restore.lua. Rewrites the log; the records before the first entry stay as they are.
  local function restore(s, line, entries, by)
    save(s, line)
    if not by.new_batch(s, entries[#entries].at) then return 0 end
    local all, order = {}, {}
    local n = size(s)
    local older = count_until(s, entries[1].at - 1, 0, n)
    local i = older
    local function add_cost(at, cost)
      if not all[at] then order[#order + 1] = at end
      all[at] = (all[at] or 0) + cost
    end
    while i < n do
      local raw, got = records(s, i, n - i)
      for j = 0, got - 1 do add_cost(read(s, raw, j * s.width + 1)) end
      i = i + got
    end
    local added, width, newest = 0, s.width, s.newest
    for _, entry in ipairs(entries) do
      local at = entry.at
      local need = entry.cost - (entry.admitted and all[at] or 0)
      if at > s.cut and need > 0 then
        add_cost(at, need)
        added = added + need
        if all[at] > WIDE and n <= MOST_WIDENED then width = 13 end
        if at > s.newest then s.newest = at end
      end
    end
    if added > 0 then
      table.sort(order)
      local body, j = {}, 0
      while j < older do
        local raw, got = records(s, j, older - j)
        body[#body + 1] = width == s.width and raw or widen(s, raw, got)
        j = j + got
      end
      s.width = width
      local newer = {}
      for i, at in ipairs(order) do newer[i] = write(s, line, at, all[at], 0) end
      s.used = s.used + added
      if older == 0 then s.oldest = order[1] end
      if s.newest > newest then s.next_ordinal = 1 end
      s.last = math.max(s.last, s.newest)
      body[#body + 1] = table.concat(newer)
      write_log(s, line, body, older + #order + BUFFER, width)
    end
    if not s.fresh then write_notes(s, line) end
    return added
  end

  -- Returns the window of a log and its number of records; nil if there is no log.
  local function window_of(log)
    local raw = call('GETRANGE', KEYS[log], '0', '523')
    if #raw == 0 then return nil end
    local s = {}
    unpack_header(s, raw)
    return s.window, size(s)
  end

  kinds[2] = { load = load, past = past, keep_newest = keep_newest, record = record, wait = wait,
               reset = reset, save = save, empty = empty, amend = amend, restore = restore, window_of = window_of,
               unpack_header = unpack_header, size = size, records = records, read = read, write_log = write_log }
end
