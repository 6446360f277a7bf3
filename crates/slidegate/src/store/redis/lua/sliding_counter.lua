
-- Counter kind 5, `sliding-counter`: two aligned windows, of which the previous one counts in proportion. The key has the
-- header of counters.lua, which must come before this part.
--
--   score       member       meaning
--   -current    u            permits of the window in which the counter last changed
--   -previous   p            permits of the window before it
--
-- Invariant: the script calculates as sliding_counter.rs does, in whole numbers. `s.current` and `s.p` are the permits
-- of the two windows, and `s.used` is the number of permits that count at `s.at`.

do
  local sliding = { algorithm = 'sliding-counter', second = 'p' }

  function sliding.read_tag(line)
    line.horizon = 2 * line.window
    return true
  end

  function sliding.ends(line, h)
    return h.newest - fmod(h.newest, line.window) + 2 * line.window
  end

  -- Sets `s.used`. The permits of the previous window count in proportion to the part of that window that is less than
  -- one window ago, rounded up.
  local function weigh(s, line)
    local weight, rest = counter.scale(s.start + line.window - s.at, s.p, line.window)
    if rest > 0 then weight = weight + 1 end
    s.used = s.current + weight
  end

  -- Moves the counter to the window of `s.at`.
  local function roll(s, line)
    local before = s.start
    s.start = s.at - fmod(s.at, line.window)
    s.cut = s.start - line.window - 1
    if s.start > before then
      s.p = s.start - before == line.window and s.current or 0
      s.current, s.last, s.moved = 0, s.at, true
    end
    weigh(s, line)
  end

  function sliding.load(line)
    local s = counter.header(line)
    if s.stored == line.quota_tag then
      s.fresh, s.has_notes = false, true
      if s.last > s.at then s.at = s.last end
    else
      counter.blank(s)
      s.p = nil
    end
    s.p = s.p or 0
    s.current, s.start = s.used, s.last - fmod(s.last, line.window)
    roll(s, line)
    return s
  end

  function sliding.past(s, line, at)
    return at < s.start - line.window
  end

  -- Forgets permits of the previous window first.
  function sliding.keep_newest(s, line, keep)
    if s.used <= keep then return end
    s.current = math.min(s.current, keep)
    -- Keeps the largest number of permits of the previous window whose weight is at most `rest`.
    local rest, remaining = keep - s.current, s.start + line.window - s.at
    local part = fmod(line.window, remaining)
    local whole = (line.window - part) / remaining
    s.p = math.min(s.p, rest * whole + counter.scale(part, rest, remaining))
    weigh(s, line)
  end

  function sliding.record(s, line, cost, times)
    s.current = s.current + cost * times
    s.used = s.used + cost * times
    return counter.number(s, cost, times)
  end

  -- Returns the time after the start of a window at which at most `keep` of the `permits` that the previous window
  -- admitted still count.
  local function time_until(line, permits, keep)
    if permits <= keep then return 0 end
    return line.window - counter.scale(keep, line.window, permits)
  end

  function sliding.wait(s, line, cost)
    if s.used + cost <= line.capacity then return 0 end
    local keep = line.capacity - s.current - cost
    if keep >= 0 then return s.start + time_until(line, s.p, keep) - s.at end
    -- After its end, the current window becomes the previous window.
    return s.start + line.window + time_until(line, s.current, math.max(line.capacity - cost, 0)) - s.at
  end

  function sliding.reset(s, line)
    if s.current > 0 then return s.start + 2 * line.window - s.at end
    return s.p > 0 and s.start + line.window - s.at or 0
  end

  function sliding.save(s, line)
    counter.save(s, line, line.ttl, s.current)
  end

  -- Corrects the sum of the window in which the admission was recorded.
  function sliding.amend(s, line, at, from, to, seq)
    if not counter.made_here(s, at, seq) then return false end
    local function corrected(sum, other)
      return math.min(math.max(sum - from, 0) + to, math.max(MAX_TOTAL - other, 0))
    end
    if at >= s.start then s.current = corrected(s.current, s.p) else s.p = corrected(s.p, s.current) end
    s.moved = true
    weigh(s, line)
    return true
  end

  -- Writes entries back: see restore.lua. Each window has its own sum.
  function sliding.restore(s, line, entries, by)
    local newest = entries[#entries].at
    if newest > s.at then
      -- The newest admission is dated ahead of the state, and may belong to the next window.
      s.at = newest
      roll(s, line)
    end
    local current, previous = 0, 0
    for _, entry in ipairs(entries) do
      if entry.at >= s.start then current = current + entry.cost
      elseif entry.at > s.cut then previous = previous + entry.cost end
      if s.fresh and entry.at < s.c then s.c = entry.at end
    end
    if current + previous == 0 then return 0 end
    if by.lost then
      local before = s.start - line.window
      current = current > 0 and by.declared(s, s.start, s.start, s.current, current) or 0
      previous = previous > 0 and by.declared(s, before, before, s.p, previous) or 0
    elseif not by.new_batch(s, s.start) then
      return 0
    end
    s.current, s.p, s.last, s.moved, s.restored = s.current + current, s.p + previous, s.at, true, true
    weigh(s, line)
    sliding.save(s, line)
    return current + previous
  end

  kinds[5] = sliding
end
