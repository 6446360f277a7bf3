
-- Warm-up: limits that rise after a cold start. The script calculates as warm_up.rs does.
--
-- plan   after the lines: a `WarmUpLine` for each line that warms up
-- reply  after everything else: a `WarmLimit` for each line that warms up, in the order of the lines
--
--   <key>:warm    <since> <last> <quota tag>    start of the warm-up, instant of the last admission, quota tag
--
-- Invariant: the limit of a line is the same for the whole batch. An admission may start the warm-up, but the batch has
-- one instant, and the limit rises only after it.

do
  local WHOLE, STEPS = 10000, { 0, 3, 6, 8 }
  local warmths = {}

  local function div(a, b)
    return (a - fmod(a, b)) / b
  end

  local function part(capacity, share)
    local rest = fmod(capacity, WHOLE)
    return math.max(1, (capacity - rest) / WHOLE * share + div(rest * share, WHOLE))
  end

  local function step(climb, quarter)
    return climb.start + div((WHOLE - climb.start) * STEPS[quarter + 1], 8)
  end

  local function share(climb, climbed)
    if climbed >= climb.over then return WHOLE end
    if climb.steps then return step(climb, div(climbed * 4, climb.over)) end
    return climb.start + div((WHOLE - climb.start) * climbed, climb.over)
  end

  -- Returns the time from the start of the warm-up until the limit is at least `needed`.
  local function reaches(climb, capacity, needed)
    if climb.steps then
      local quarter = 0
      while quarter < 4 and part(capacity, step(climb, quarter)) < needed do quarter = quarter + 1 end
      return math.ceil(quarter * climb.over / 4)
    end
    local low, high = climb.start, WHOLE
    while low < high do
      local middle = div(low + high, 2)
      if part(capacity, middle) >= needed then high = middle else low = middle + 1 end
    end
    local a, b = (low - climb.start) * climb.over, WHOLE - climb.start
    return div(a + b - 1, b)
  end

  local function is_warm(warmth, climb, at)
    return warmth.last and at < warmth.last + climb.idle
  end

  local function read(lines, count)
    for _ = 1, count do
      local climb = WarmUpLine.take_table()
      local line = lines[climb.line]
      climb.key, climb.steps = KEYS[climb.key], climb.steps == 1
      line.full, line.climb = line.capacity, climb
    end
  end

  -- Sets the current limit of a line.
  local function set_limit(line, s)
    local climb = line.climb
    local warmth = warmths[climb.key]
    if not warmth then
      local since, last, quota_tag = string.match(call('GET', climb.key) or '', '^(%d+) (%d+) (.+)$')
      warmth = { since = tonumber(since), last = tonumber(last), quota_tag = quota_tag }
    end
    -- Another quota starts the warm-up anew.
    if warmth.quota_tag ~= line.quota_tag then warmth = { quota_tag = line.quota_tag } end
    warmths[climb.key] = warmth
    local climbed = is_warm(warmth, climb, s.at) and math.max(0, s.at - warmth.since) or 0
    line.capacity = part(line.full, share(climb, climbed))
  end

  local function admitted(line, s)
    local climb = line.climb
    local warmth = warmths[climb.key]
    if is_warm(warmth, climb, s.at) then
      warmth.last = math.max(warmth.last, s.at)
    else
      warmth.since, warmth.last = s.at, s.at
    end
    warmth.line = line
  end

  -- Returns the wait until enough permits have expired for `cost` to fit into `limit`.
  local function wait_within(limit, kind, s, line, cost)
    if cost > limit then return kind.reset(s, line) end
    local capacity = line.capacity
    line.capacity = limit
    local leaves, bound = kind.wait(s, line, cost)
    line.capacity = capacity
    return leaves, bound
  end

  local function wait(kind, s, line, cost)
    if s.used == 0 or s.used + cost <= line.capacity then return 0 end
    local climb = line.climb
    local warmth = warmths[climb.key]
    local leaves, bound = wait_within(line.capacity, kind, s, line, cost)
    if not is_warm(warmth, climb, s.at) then return leaves, bound end
    local cold = warmth.last + climb.idle
    if s.at + leaves >= cold then
      leaves, bound = wait_within(part(line.full, climb.start), kind, s, line, cost)
    end
    if s.used + cost > line.full then return leaves, bound end
    local reached = warmth.since + reaches(climb, line.full, s.used + cost)
    if reached >= cold or reached - s.at > leaves then return leaves, bound end
    return math.max(0, reached - s.at)
  end

  local function save()
    for key, warmth in pairs(warmths) do
      local line = warmth.line
      if line then
        local ends = math.ceil((warmth.last + line.climb.idle) / 1000) + 10000
        call('SET', key, format('%d %d %s', warmth.since, warmth.last, line.quota_tag), 'PXAT', format('%d', ends))
      end
    end
  end

  warm = { read = read, set_limit = set_limit, admitted = admitted, wait = wait, save = save }
end
