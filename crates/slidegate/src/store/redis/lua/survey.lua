
-- Reading a key as it is, whoever wrote it: for audit.lua and clean.lua, which leave alone what is not ours.
--
-- plan   min-expire, expire-buffer (see shape.lua), then what audit.lua or clean.lua says
-- KEYS   what may be stored of one key: its count, the notes on that, its log, the notes on that

local function type_of(key)
  return call('TYPE', key).ok
end

-- Whether `see(name, score)` holds for each member of a sorted set, lowest first, up to the score `most`; with `limit` for that
-- many at most.
local function each_member(key, most, see, limit)
  local up_to = most == math.huge and '+inf' or format('%d', most)
  local found = call('ZRANGEBYSCORE', key, '-inf', up_to, 'WITHSCORES', 'LIMIT', '0', '512')
  local offset = 0
  while true do
    for i = 1, #found, 2 do
      local score = tonumber(found[i + 1])
      if score > most then return true end
      if not see(found[i], score) then return false end
    end
    offset = offset + 512
    if #found < 1024 or limit and offset >= limit then return true end
    found = call('ZRANGE', key, format('%d', offset), format('%d', offset + 511), 'WITHSCORES')
  end
end

local function is_note(name)
  local what = string.match(name, '^(%l+):')
  return what == 'id' or what == 'settled' or what == 'void' or what == 'moved' or what == 'heal' or what == 'cost'
end

-- What an entry of a window costs; nil if it is none.
local function cost_of(line, name, at)
  local hex = at % 1 == 0 and format('%x', at % line.modulus)
  if name == hex then return 1 end
  if not hex or string.sub(name, 1, #hex) ~= hex then return nil end
  local rest = string.sub(name, #hex + 1)
  -- One that a node wrote back.
  rest = string.match(rest, '^%-%w+(.*)$') or rest
  if rest == '' then return 1 end
  return tonumber(string.match(rest, '^%*(%d+)$') or string.match(rest, '^%*(%d+)%.%d+$'))
end

-- A sorted set of ours: its line and its header, each number by the letter it has; nil if it is not ours.
local function read_header()
  local h, shape = {}, nil
  local ours = each_member(KEYS[1], 0, function(name, score)
    if string.find(name, '^[ulmcng]$') then
      h[name] = -score
    elseif not shape then
      shape, h.newest = name, -score
    else
      return false
    end
    return true
  end)
  local line = ours and shape and line_of(shape, 1, 2, 1)
  if not line then return nil end
  -- The total of a window can be told from its entries.
  local whole = line.kind == 1 and h.l and h.m or line.kind > 2 and h.u and h.u % 1 == 0 and h.n and h.c
  if not whole or line.kind == 4 and not h.g then return nil end
  return line, h
end

-- A packed log: its line; nil if it is not ours.
local function read_log()
  local key = KEYS[3]
  local raw = call('GETRANGE', key, '0', '107')
  if #raw < 108 or string.sub(raw, 1, 4) ~= 'sgp1' then return nil end
  local width, room, head, size, window, to, _, newest, last, oldest, places, from, recent =
    struct.unpack('<ddddddddddddd', raw, 5)
  for _, number in ipairs({ room, head, size, window, to, newest, last, oldest, places, from, recent }) do
    if not (number >= 0 and number < 2 ^ 52 and number % 1 == 0) then return nil end
  end
  local sound = (width == 8 or width == 13) and size <= room and (head < room or head == 0) and from <= to
    and to <= 16 and recent <= 16 and window > 0
  local ends = sound and format('%d', 107 + (32 + room) * width)
  if not sound or #call('GETRANGE', key, ends, ends) == 0 then return nil end
  return line_of(format('sliding-window %d', window), 3, 4, 2)
end

-- When a key should expire whose state is `s`, in milliseconds.
local function expiry_of(s, line)
  local life = line.life
  if line.kind == 4 then life = life + math.max(0, kinds[4].reset(s, line) - line.horizon) end
  return format('%d', math.ceil((math.max(s.at, s.newest or 0) + life) / 1000))
end
