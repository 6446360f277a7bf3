
-- The common case, before anything else is set up: asks of one exact window, alike, on a clock that moves on.
-- What it cannot do it leaves to the rest of the script, and has then written nothing. The layout and what it
-- means is in zset.lua. If all are granted the reply is short: the instant, how many, used, reset after.
--
-- If every entry costs the same (see `m`), the permits that leave are counted by removing them, and the entry
-- whose leaving makes room is found by its rank.

do
  local key, shape = KEYS[1], ARGV[2]
  local window, capacity, period, life, modulus, _, times, cost =
    struct.unpack('<dddddddd', ARGV[1], 73)
  local head = cost == 1 and call('ZMSCORE', key, 'u', shape) or call('ZMSCORE', key, 'u', shape, 'm')
  local fresh = not head[2]
  local used, newest, alike, later, able, notes = 0, 0, 1, 0, not head[1], ''
  if not fresh then
    used, newest = -head[1], -head[2]
    if newest % 1 > 0 then newest, notes = newest - 0.5, '.5' end
    local more = used % 1
    if more > 0 then
      used = used - more
      if more >= 0.5 then later, more = -call('ZSCORE', key, 'l'), more - 0.5 end
      if more > 0 then alike = -(head[3] or call('ZSCORE', key, 'm')) end
    end
    able = newest < now and later < now
  elseif able then
    able = call('EXISTS', key) == 0
  end
  if able then
    local cut, gone, found = now - window, 0, nil
    if not fresh then
      if newest <= cut and later <= cut then
        -- The key was idle: dropping it whole is cheaper than emptying it.
        call('UNLINK', key)
        gone, newest, alike, notes, fresh = used, 0, 1, '', true
      elseif alike > 0 then
        gone = alike * call('ZREMRANGEBYSCORE', key, '1', format('%d', cut))
      else
        found = call('ZRANGEBYSCORE', key, '1', format('%d', cut), 'LIMIT', '0', '256')
        for i = 1, #found do
          local star = string.find(found[i], '*', 1, true)
          gone = gone + (star and string.match(found[i], '^%d+', star + 1) or 1)
        end
        able = #found < 256
      end
      used = used - gone
    end
    local room = capacity - used
    local granted = 0
    if room >= cost then
      granted = times == 1 and 1 or (room - room % cost) / cost
      if granted > times then granted = times end
    end
    if granted < times and alike == 0 then able = false end
    if able then
      local before, retry = used, 0
      if granted > 0 then
        local total = granted * cost
        local at, name = format('%d', now), nil
        if granted > 1 then
          name = format('%x*%d.%d', now % modulus, total, granted)
        elseif cost > 1 then
          name = format('%x*%d', now % modulus, total)
        else
          name = format('%x', now % modulus)
        end
        used = used + total
        if found and found[1] then call('ZREMRANGEBYSCORE', key, '1', format('%d', cut)) end
        if fresh then
          call('ZADD', key, format(total == 1 and '-%d' or '-%d.25', used), 'u', '-' .. at, shape, at, name,
            format('-%d', total), 'm', '0', 'l')
        elseif total ~= alike and alike > 0 then
          call('ZADD', key, format('-%d.25', used), 'u', '-' .. at .. notes, shape, at, name, '0', 'm')
        else
          call('ZADD', key, format(alike == 1 and '-%d' or '-%d.25', used), 'u', '-' .. at .. notes, shape, at, name)
        end
        if now - now % period > newest then
          call('PEXPIREAT', key, format('%d', math.ceil((now + life) / 1000)))
        end
        newest = now
      elseif gone > 0 then
        call('ZADD', key, format(alike == 1 and '-%d.5' or '-%d.75', used), 'u', format('-%d', now), 'l')
      end
      if granted < times then
        local nth = used + cost - capacity + alike - 1
        nth = (nth - nth % alike) / alike
        retry = window
        if nth * alike <= before then
          local rank = format('%d', 3 + nth)
          retry = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + window - now
        end
      end
      local reset = used > 0 and newest + window - now or 0
      if granted == times then return struct.pack('<dddd', now, granted, used, reset) end
      return struct.pack('<ddddddd', now, granted, used, retry, reset, now, 0)
    end
  end
end
