
local fmod = math.fmod

local MAX_TOTAL = 2251799813685247

-- Makes a key expire at the instant `at`, which is after `now`.
--
-- Invariant: a script does not access the key after this call. Before Redis 7.2 the clock advances while a script runs,
-- and Redis removes the key as soon as the expiry has passed: a later write would create an incomplete key. A pause of
-- the server before this call does no harm, because the script passes a duration, not an instant. If a pause during
-- this call lets the expiry pass, Redis removes a complete key, whose permits no longer count.
local function expire_at(key, at)
  call('PEXPIRE', key, format('%d', math.ceil((at - now) / 1000)))
end

-- Reads the next line of the plan: a key and the quota it is evaluated by.
local function take_line()
  local line = Line.take_table()
  line.quota_tag, line.attempts = ARGV[line.quota_tag], line.attempts == 1
  return line
end

-- Returns the modulus of the instants in member names. It keeps the names short, and unique for twice as long as an
-- entry counts. Names of counters and of concurrency permits contain the full instant: the time to fill of a bucket
-- changes with its rate, and a concurrency permit may be extended.
local function modulus_of(kind, horizon, is_concurrency)
  if kind > 2 or is_concurrency then return 2 ^ 52 end
  local modulus = 16
  while modulus <= 2 * horizon do modulus = modulus * 16 end
  return modulus
end

-- Fails with SGFOREIGN if the key holds data that Slidegate did not write, so that the script does not change the data.
local function check_ours(key, stored)
  if stored and not string.find(stored, '^%l[%l-]+ %d') or not stored and call('EXISTS', key) == 1 then
    error('SGFOREIGN')
  end
end

local kinds = {}

-- Functions of warm.lua; nil unless a limit of the batch warms up.
local warm
