
local fmod = math.fmod

local MAX_TOTAL = 2251799813685247

-- Makes a key expire at the instant `at`, which is after `now`.
--
-- Invariant: Redis never sees an instant in the past, for which it would remove the key at once, perhaps before the
-- script has written all of it. Before Redis 7.2 its clock goes on during a script, so a pause of the process could
-- do that. So the script passes the time that is left.
local function expire_at(key, at)
  call('PEXPIRE', key, format('%d', math.ceil((at - now) / 1000)))
end

-- Reads the next line of the plan: a key and the quota it is evaluated by.
local function take_line()
  local line = Line.take_table()
  line.quota_tag, line.attempts = ARGV[line.quota_tag], line.attempts == 1
  return line
end

-- Returns the modulus of the instants in member names. The names are short, and unique for twice as long as an entry
-- counts. The time that a bucket takes to fill changes with its rate, and a concurrency permit may be extended, so
-- their instants are named in full.
local function modulus_of(kind, horizon, is_concurrency)
  if kind > 2 or is_concurrency then return 2 ^ 52 end
  local modulus = 16
  while modulus <= 2 * horizon do modulus = modulus * 16 end
  return modulus
end

-- Fails with SGFOREIGN if the key holds data that Slidegate did not write, so the script leaves it alone.
local function check_ours(key, stored)
  if stored and not string.find(stored, '^%l[%l-]+ %d') or not stored and call('EXISTS', key) == 1 then
    error('SGFOREIGN')
  end
end

local kinds = {}

-- Functions of warm.lua; nil unless a limit of the batch warms up.
local warm
