
-- The common case, before anything else is set up: asks of one packed window, alike, on a clock that moves on,
-- in a log that need not grow. What it cannot do it leaves to the rest of the script, and has then written
-- nothing. The layout is in packed.lua.

do
  local key = KEYS[1]
  local window, capacity, period, life, _, _, times, cost =
    struct.unpack('<dddddddd', ARGV[1], 73)
  local raw = call('GETRANGE', key, '0', '363')
  if #raw == 364 and times * cost <= 65535 then
    -- Its width and its window tell it from something else, for now.
    local width, room, head, size, counted, to, used, newest, last, oldest, places, from, recent =
      struct.unpack('<ddddddddddddd', raw, 5)
    local cut, able = now - window, width == 8 and counted == window and last < now
    if able and used > 0 then
      local gone, front, base, refills = 0, raw, 237, 0
      while able and oldest <= cut do
        if from == to then
          -- The ring's oldest become the front.
          local n = math.min(16, size, room - head)
          refills = refills + 1
          able = n > 0 and refills < 4
          if able then
            local start = 364 + head * 8
            front, base = call('GETRANGE', key, format('%d', start), format('%d', start + n * 8 - 1)), 1
            from, to, head, size = 0, n, (head + n) % room, size - n
          end
        end
        if able then
          local time, held = struct.unpack('>I6I2', front, base + from * 8)
          -- Its cost may stand in the notes.
          able = held < 65535
          oldest = now - (now - time) % 281474976710656
          if oldest <= cut then gone, from = gone + held, from + 1 end
        end
      end
      if able then
        used = used - gone
        local left = capacity - used
        local granted, retry = 0, 0
        if left >= cost then
          granted = times == 1 and 1 or (left - left % cost) / cost
          if granted > times then granted = times end
        end
        local tail = (head + size) % room
        if granted > 0 and recent == 16 then able = size + 16 <= room and tail + 16 <= room end
        if granted < times then
          local needed, i = used + granted * cost + cost - capacity, from
          able = able and from < to
          while able and needed > 0 do
            if i < to then
              local time, held = struct.unpack('>I6I2', front, base + i * 8)
              able = held < 65535
              needed, i = needed - held, i + 1
              retry = window - (now - time) % 281474976710656
            else
              able = false
            end
          end
        end
        if able then
          local newer, moved = string.sub(raw, 109, 108 + recent * 8), refills > 0
          if granted > 0 then
            if recent == 16 then
              call('SETRANGE', key, format('%d', 364 + tail * 8), newer)
              newer, recent, size, moved = '', 0, size + 16, true
            end
            used = used + granted * cost
            newer = newer .. struct.pack('>I6I2', now % 281474976710656, granted * cost)
            recent, places = recent + 1, granted
            if now - now % period > newest then
              call('PEXPIREAT', key, format('%d', math.ceil((now + life) / 1000)))
            end
            newest, last = now, now
          elseif gone > 0 then
            last = now
          end
          if granted > 0 or gone > 0 then
            if refills > 0 then newer = newer .. string.rep('\0', 128 - #newer) .. front end
            local changed = struct.pack('<ddddddd', used, newest, last, oldest, places, from, recent)
            if moved then
              call('SETRANGE', key, '0',
                struct.pack('<c4dddddd', 'sgp1', width, room, head, size, window, to) .. changed .. newer)
            else
              call('SETRANGE', key, '52', changed .. newer)
            end
          end
          if granted == times then return struct.pack('<dddd', now, granted, used, window) end
          return struct.pack('<dddddddd', now, granted, used, retry, newest + window - now, now, 0, 0)
        end
      end
    end
  end
end
