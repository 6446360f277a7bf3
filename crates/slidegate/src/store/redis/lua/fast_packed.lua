
-- Fast path for one packed window: equal requests, with a clock that moves forward, in a log that need not grow. The
-- fast path runs before the other parts of the script are defined. If it cannot answer, it leaves the requests to the
-- rest of the script and has then written nothing. packed.lua explains the stored layout.
--
-- reply  as in fast_zset.lua

do
  local key = KEYS[1]
  local window, capacity, period, ttl, times, cost = Batch.Line.RequestHead.Run.at(plan, 0)
  local raw = call('GETRANGE', key, '0', '363')
  if #raw == 364 and times * cost <= 65535 then
    -- Comparing the width and the window is enough here to tell a log from foreign data.
    local width, room, head, size, log_window, to, used, newest, last, oldest, next_ordinal, from, recent =
      LogShape.LogCounts.at(raw, 4)
    local cut, supported = now - window, width == 8 and log_window == window and last < now
    if supported and used > 0 then
      local gone, front, base, refills = 0, raw, 237, 0
      while supported and oldest <= cut do
        if from == to then
          -- The oldest records of the ring become the front.
          local n = math.min(16, size, room - head)
          refills = refills + 1
          supported = n > 0 and refills < 4
          if supported then
            local start = 364 + head * 8
            front, base = call('GETRANGE', key, format('%d', start), format('%d', start + n * 8 - 1)), 1
            from, to, head, size = 0, n, (head + n) % room, size - n
          end
        end
        if supported then
          local time, record_cost = struct.unpack('>I6I2', front, base + from * 8)
          -- 65535 may stand for a larger cost, which is then stored in the notes.
          supported = record_cost < 65535
          oldest = now - (now - time) % 281474976710656
          if oldest <= cut then gone, from = gone + record_cost, from + 1 end
        end
      end
      if supported then
        used = used - gone
        local left = capacity - used
        local granted, retry = 0, 0
        if left >= cost then
          granted = times == 1 and 1 or (left - left % cost) / cost
          if granted > times then granted = times end
        end
        local tail = (head + size) % room
        if granted > 0 and recent == 16 then supported = size + 16 <= room and tail + 16 <= room end
        if granted < times then
          local needed, i = used + granted * cost + cost - capacity, from
          supported = supported and from < to
          while supported and needed > 0 do
            if i < to then
              local time, record_cost = struct.unpack('>I6I2', front, base + i * 8)
              supported = record_cost < 65535
              needed, i = needed - record_cost, i + 1
              retry = window - (now - time) % 281474976710656
            else
              supported = false
            end
          end
        end
        if supported then
          local newer, moved, expires = string.sub(raw, 109, 108 + recent * 8), refills > 0, false
          if granted > 0 then
            if recent == 16 then
              call('SETRANGE', key, format('%d', 364 + tail * 8), newer)
              newer, recent, size, moved = '', 0, size + 16, true
            end
            used = used + granted * cost
            newer = newer .. struct.pack('>I6I2', now % 281474976710656, granted * cost)
            recent, next_ordinal = recent + 1, granted
            expires = now - now % period > newest
            newest, last = now, now
          elseif gone > 0 then
            last = now
          end
          if granted > 0 or gone > 0 then
            if refills > 0 then newer = newer .. string.rep('\0', 128 - #newer) .. front end
            local counts = LogCounts.pack({
              used = used, newest = newest, last = last, oldest = oldest, next_ordinal = next_ordinal, from = from,
              recent = recent,
            })
            if moved then
              call('SETRANGE', key, '0', 'sgp1' .. LogShape.pack({
                width = width, room = room, head = head, size = size, log_window = window, to = to,
              }) .. counts .. newer)
            else
              -- Byte 52 is the start of `LogCounts`, after the mark and `LogShape`.
              call('SETRANGE', key, '52', counts .. newer)
            end
            -- The expiry is set last: see `expire_at` in common.lua.
            if expires then call('PEXPIRE', key, format('%d', math.ceil(ttl / 1000))) end
          end
          if granted == times then
            return ReplyHead.RunHead.GrantedRun.pack({ at = now, form = RunForm.Granted, used = used })
          end
          return ReplyHead.RunHead.RunReply.pack({
            at = now, form = RunForm.Full, granted = granted, used = used, retry_after = retry,
            reset_after = newest + window - now, recorded_at = now, first_seq = 0, lower_bound = 0,
          })
        end
      end
    end
  end
end
