
-- The common case, before anything else is set up: runs of asks of exact windows, each run alike and of a key of its
-- own, on a clock that moves on. What it cannot do of one run it leaves to the rest of the script, and has then
-- written nothing of that key. The layout and what it means is in zset.lua.
--
-- If there is one run and all of it is granted the reply is short: the instant, how many, used, reset after. Of one of
-- several it is: how many and a half, used. What is recorded now is reset after a window.
--
-- If every entry costs the same (see `m`), the permits that leave are counted by removing them, or by ZCOUNT where they may be
-- more than one call removes, and the entry whose leaving makes room is found by its rank.

do
  local plan, unpack, pack = ARGV[1], struct.unpack, struct.pack
  -- A line is 13 numbers and a run 4, and before each of the two tables stands its length.
  local runs = (#plan - 16) / 136
  local heads, shapes, able, reserved = nil, nil, true, 0
  if runs > 1 then
    -- What is not ours must be found before anything is written.
    heads, shapes = {}, {}
    local shape = ARGV[2]
    for i = 1, runs do
      local key = KEYS[i]
      if ARGV[3] then shape = ARGV[unpack('<d', plan, 104 * i - 71)] end
      local head = call('ZMSCORE', key, 'u', shape)
      heads[i], shapes[i] = head, shape
      if not head[2] and (head[1] or call('EXISTS', key) == 1) then able = false break end
      if head[2] and head[1] then
        head[1] = head[1] + 0
        local differs, latest = head[1] % 0.5 > 0, math.floor(-head[2])
        local cut = now - unpack('<d', plan, 104 * i - 31)
        if latest <= cut and (differs or head[1] < -8) then
          if head[1] % 1 > 0 and head[1] % 1 <= 0.5 then latest = math.max(latest, -call('ZSCORE', key, 'l')) end
          if latest <= cut then
            if not drop_key(key) then return 1 end
            heads[i], differs = {}, false
          end
        end
        if differs then reserved = reserved - head[1] end
      end
    end
    if able and reserved > trims then
      -- What differs may take several calls to sum up, and then nothing is decided: found before anything is written.
      reserved = 0
      for i = 1, runs do
        local used, newest = heads[i][1], heads[i][2]
        if used and used % 0.5 > 0 then
          local latest = math.max(now, -newest)
          if used % 1 < 0.5 then latest = math.max(latest, -call('ZSCORE', KEYS[i], 'l')) end
          local window = unpack('<d', plan, 104 * i - 31)
          reserved = reserved + call('ZCOUNT', KEYS[i], '1', format('%d', latest - window))
        end
      end
      able = reserved <= trims
    end
  end
  if able then
    local at = format('%d', now)
    local minus_at = '-' .. at
    local left, window, capacity, period, life, modulus, cut, cut_at, plain = runs
    for i = 1, runs do
      local key = KEYS[i]
      local times, cost, _, same = unpack('<dddd', plan, 104 * runs + 32 * i - 15)
      -- Most runs have the same quota as the one before.
      if same == 0 then
        window, capacity, period, life, modulus = unpack('<ddddd', plan, 104 * i - 31)
        cut = now - window
        cut_at, plain = format('%d', cut), format('%x', now % modulus)
      end
      local shape, head
      if heads then
        shape, head = shapes[i], heads[i]
      else
        shape = ARGV[2]
        head = cost == 1 and call('ZMSCORE', key, 'u', shape) or call('ZMSCORE', key, 'u', shape, 'm')
      end
      local fresh = not head[2]
      local used, newest, alike, later, newest_at = 0, 0, 1, 0, minus_at
      able = not head[1]
      if not fresh then
        used, newest = -head[1], -head[2]
        -- Half more if there are notes, as before.
        if newest % 1 > 0 then newest, newest_at = newest - 0.5, minus_at .. '.5' end
        local more = used % 1
        if more > 0 then
          used = used - more
          if more >= 0.5 then later, more = -call('ZSCORE', key, 'l'), more - 0.5 end
          -- Among others, what costs 1 takes it that they differ if they do not cost 1, and says so.
          if more > 0 then alike = cost == 1 and heads and 0 or -(head[3] or call('ZSCORE', key, 'm')) end
        end
        able = newest < now and later < now
      elseif able and not heads then
        able = call('EXISTS', key) == 0
      end
      if able then
        local gone, kept, left_in, found, empty = 0, 0, 0, nil, false
        if not fresh then
          if newest <= cut and later <= cut and (alike == 0 or used > 8 * alike) then
            -- The key was idle: dropping it whole is cheaper than emptying it, unless it has little.
            if not drop_key(key) then return 1 end
            gone, newest, alike, newest_at, fresh = used, 0, 1, minus_at, true
          elseif alike > 0 then
            local up_to, expired = cut_at, nil
            if used > (trims - reserved) * alike then
              expired = call('ZCOUNT', key, '1', cut_at)
              local most = trims - reserved
              if expired > most then
                local rank = format('%d', 3 + most)
                up_to = most > 0 and call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] or '1'
              end
            end
            local removed = call('ZREMRANGEBYSCORE', key, '1', up_to)
            trims = trims - removed
            gone = alike * (expired or removed)
            if expired then left_in, kept = expired - removed, alike * (expired - removed) end
            empty = gone == used and kept == 0
          else
            found = call('ZRANGEBYSCORE', key, '1', cut_at, 'LIMIT', '0', '256')
            for n = 1, #found do
              local star = string.find(found[n], '*', 1, true)
              gone = gone + (star and string.match(found[n], '^%d+', star + 1) or 1)
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
            local name
            if granted > 1 then
              name = format('%s*%d.%d', plain, total, granted)
            elseif cost > 1 then
              name = format('%s*%d', plain, total)
            else
              name = plain
            end
            used = used + total
            local stored = used + kept
            if found and found[1] then call('ZREMRANGEBYSCORE', key, '1', cut_at) end
            if fresh then
              call('ZADD', key, format(total == 1 and '-%d' or '-%d.25', used), 'u', minus_at, shape, at, name,
                format('-%d', total), 'm', '0', 'l')
            elseif total ~= alike and alike > 0 then
              -- Alone it is like all of them.
              local now_alike = empty and total or 0
              call('ZADD', key, format(now_alike == 1 and '-%d' or '-%d.25', stored), 'u', newest_at, shape, at,
                name, now_alike == 0 and '0' or format('-%d', now_alike), 'm')
            elseif alike == 0 and cost == 1 and heads then
              call('ZADD', key, format('-%d.25', stored), 'u', newest_at, shape, at, name, '0', 'm')
            else
              call('ZADD', key, format(alike == 1 and '-%d' or '-%d.25', stored), 'u', newest_at, shape, at, name)
            end
            if now - now % period > newest then
              call('PEXPIREAT', key, format('%d', math.ceil((now + life) / 1000)))
            end
            newest = now
          elseif gone > 0 then
            call('ZADD', key, format(alike == 1 and '-%d.5' or '-%d.75', used + kept), 'u', format('-%d', now), 'l')
          end
          if granted < times then
            local nth = used + cost - capacity + alike - 1
            nth = (nth - nth % alike) / alike
            retry = window
            if nth * alike <= before then
              local rank = format('%d', 3 + left_in + nth)
              retry = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + window - now
            end
          end
          local reset = used > 0 and newest + window - now or 0
          if granted == times then
            if not heads then return pack('<dddd', now, granted, used, reset) end
            answered[i], left = pack('<dd', granted + 0.5, used), left - 1
          else
            answered[i], left = pack('<ddddddd', granted, used, retry, reset, now, 0, 0), left - 1
          end
        end
      end
    end
    if left == 0 then return pack('<d', now) .. table.concat(answered) end
  end
end
