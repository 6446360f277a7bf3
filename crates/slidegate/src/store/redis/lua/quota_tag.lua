
-- Derives how a key counts from the quota tag that is stored with it, for calls whose plan does not contain the
-- quota.
--
-- plan   begins with `ExpirySettings`

local min_expire, buffer = ExpirySettings.take()

-- Returns a line, as `take_line` does, from a quota tag; nil if the text is not a quota tag. The quota tag of a window
-- does not contain the limit, and the calls that use this function do not need the limit.
local function line_of(quota_tag, key, notes, kind)
  local algorithm, a, b, c = string.match(quota_tag, '^(%S+) (%d+) ?(%d*) ?(%d*)$')
  a, b, c = tonumber(a), tonumber(b), tonumber(c)
  if not a or a == 0 or b == 0 or c == 0 then return nil end
  local line = { key = key, notes = notes, quota_tag = quota_tag, window = a, horizon = a, slice = 0, capacity = MAX_TOTAL }
  if algorithm == 'sliding-window' then line.kind = kind
  elseif algorithm == 'concurrency' then line.kind, line.is_concurrency = 1, true
  elseif algorithm == 'time-slice' and b then
    line.kind = 1
    line.slice = math.ceil(a / b)
    line.horizon = a + line.slice
  else
    for number, counter in pairs(kinds) do
      if counter.algorithm == algorithm then line.kind = number end
    end
    if not line.kind or not kinds[line.kind].read_tag(line, a, b, c) then return nil end
  end
  line.ttl = math.max(min_expire, line.horizon + buffer)
  line.period = math.max(1, line.ttl - line.horizon - math.floor(buffer / 2))
  line.modulus = modulus_of(line.kind, line.horizon, line.is_concurrency)
  return line
end

-- Returns the quota tag that is stored in a sorted set; nil if the key is missing.
local function quota_tag_of(key)
  local found = call('ZRANGEBYSCORE', key, '-inf', '0', 'LIMIT', '0', '16')
  for i = 1, #found do
    if #found[i] > 1 then return found[i] end
  end
  if found[1] then check_ours(key, found[1]) end
end
