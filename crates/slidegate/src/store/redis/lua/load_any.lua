
-- Reads a key without trusting its contents, for audit.lua and gc.lua, which do not change foreign data.
--
-- KEYS   the keys that may hold data of one rate limit key, in this order: its count, the notes on the count, its log,
--        the notes on the log
-- plan   `ExpirySettings`, then the plan of audit.lua or gc.lua

local function type_of(key)
  return call('TYPE', key).ok
end

-- Calls `visit(name, score)` for each member of a sorted set up to the score `most`, lowest score first; with `limit`,
-- for about that many members at most. Returns false as soon as `visit` returns a false value; otherwise true.
local function each_member(key, most, visit, limit)
  local up_to = most == math.huge and '+inf' or format('%d', most)
  local found = call('ZRANGEBYSCORE', key, '-inf', up_to, 'WITHSCORES', 'LIMIT', '0', '512')
  local offset = 0
  while true do
    for i = 1, #found, 2 do
      local score = tonumber(found[i + 1])
      if score > most then return true end
      if not visit(found[i], score) then return false end
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

-- Returns the cost of an entry of a window; nil if the member is not an entry.
local function cost_of(line, name, at)
  local hex = at % 1 == 0 and format('%x', at % line.modulus)
  if name == hex then return 1 end
  if not hex or string.sub(name, 1, #hex) ~= hex then return nil end
  local rest = string.sub(name, #hex + 1)
  -- An entry that a node wrote back.
  rest = string.match(rest, '^%-%w+(.*)$') or rest
  if rest == '' then return 1 end
  return tonumber(string.match(rest, '^%*(%d+)$') or string.match(rest, '^%*(%d+)%.%d+$'))
end

-- Reads the header of a sorted set: returns its line, and a table with each number under its letter; nil if it is
-- foreign.
local function read_header()
  local h, quota_tag = {}, nil
  local ours = each_member(KEYS[1], 0, function(name, score)
    if string.find(name, '^%l$') then
      h[name] = -score
    elseif not quota_tag then
      quota_tag, h.newest = name, -score
    else
      return false
    end
    return true
  end)
  local line = ours and quota_tag and line_of(quota_tag, 1, 2, 1)
  if not line then return nil end
  -- A window may lack its total `u`, which can be computed again from its entries.
  local whole = line.kind == 1 and h.l and h.m or line.kind > 2 and h.u and h.u % 1 == 0 and h.n and h.c
  local second = kinds[line.kind].second
  if not whole or second and not h[second] then return nil end
  return line, h
end

-- Reads a packed log: returns its line; nil if it is foreign.
local function read_log()
  local key = KEYS[3]
  local raw = call('GETRANGE', key, '0', '107')
  if #raw < 108 or string.sub(raw, 1, 4) ~= 'sgp1' then return nil end
  local width, room, head, size, log_window, to, newest, last, oldest, next_ordinal, from, recent =
    LogShape.LogCounts.at(raw, 4)
  for _, number in ipairs({ room, head, size, log_window, to, newest, last, oldest, next_ordinal, from, recent }) do
    if not (number >= 0 and number < 2 ^ 52 and number % 1 == 0) then return nil end
  end
  local sound = (width == 8 or width == 13) and size <= room and (head < room or head == 0) and from <= to
    and to <= 16 and recent <= 16 and log_window > 0
  local ends = sound and format('%d', 107 + (32 + room) * width)
  if not sound or #call('GETRANGE', key, ends, ends) == 0 then return nil end
  return line_of(format('sliding-window %d', log_window), 3, 4, 2)
end

-- Returns when a key with state `s` should expire.
local function expiry_of(s, line)
  local ttl = line.ttl
  if line.kind > 2 then ttl = ttl + math.max(0, kinds[line.kind].reset(s, line) - line.horizon) end
  return math.max(s.at, s.newest or 0) + ttl
end
