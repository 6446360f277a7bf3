
-- The common case, before anything else is set up: asks of one packed window, alike, on a clock that moves on,
-- when what leaves is in the front and what comes fits among the recent. What it cannot do it leaves to the rest
-- of the script, and has then written nothing. The layout is in packed.lua.

do
  local key = KEYS[1]
  local window, capacity, _, _, _, _, period, life, _, _, times, _, cost =
    struct.unpack('<ddddddddddddd', ARGV[1], 41)
  local raw = call('GETRANGE', key, '0', '363')
  if #raw == 364 and times * cost <= 65535 then
    local mark, width, room, head, size, used, newest, last, oldest, counted, places, from, to, recent =
      struct.unpack('<c4ddddddddddddd', raw)
    local cut, able = now - window, mark == 'sgp1' and width == 8 and counted == window and last < now
    if able and used > 0 then
      local gone = 0
      while oldest <= cut and from < to do
        local time, held = struct.unpack('>I6I2', raw, 237 + from * 8)
        oldest = now - (now - time) % 281474976710656
        if oldest <= cut then
          gone, from = gone + held, from + 1
          able = from < to
        end
      end
      -- With no front, what is oldest is elsewhere.
      if oldest <= cut then able = false end
      if able then
        used = used - gone
        local left = capacity - used
        local granted, retry = 0, 0
        if left >= cost then
          granted = times == 1 and 1 or (left - fmod(left, cost)) / cost
          if granted > times then granted = times end
        end
        if granted > 0 and recent == 16 then able = false end
        if granted < times then
          local needed, i = used + granted * cost + cost - capacity, from
          able = able and from < to
          while able and needed > 0 do
            if i < to then
              local time, held = struct.unpack('>I6I2', raw, 237 + i * 8)
              needed, i = needed - held, i + 1
              retry = window - (now - time) % 281474976710656
            else
              able = false
            end
          end
        end
        if able then
          local added = ''
          if granted > 0 then
            used = used + granted * cost
            added = struct.pack('>I6I2', now % 281474976710656, granted * cost)
            places = granted
            if now - now % period > newest then
              call('PEXPIREAT', key, format('%d', math.ceil((now + life) / 1000)))
            end
            newest, last = now, now
          elseif gone > 0 then
            last = now
          end
          if granted > 0 or gone > 0 then
            call('SETRANGE', key, '0', struct.pack('<c4ddddddddddddd', mark, width, room, head, size, used, newest,
              last, oldest, window, places, from, to, granted > 0 and recent + 1 or recent)
              .. string.sub(raw, 109, 108 + recent * 8) .. added)
          end
          return struct.pack('<ddddddd', now, granted, used, retry, newest + window - now, now, 0)
        end
      end
    end
  end
end
