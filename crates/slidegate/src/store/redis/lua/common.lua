
local fmod = math.fmod

local MAX_TOTAL = 2251799813685247

-- Makes a key expire at the instant `at`, which is after `now`.
--
-- Invariant: this is the last access of a script to the key. Before Redis 7.2 the clock advances during a script, and
-- an expiry that has passed removes the key at once: a write after that would make an incomplete key. A pause before
-- this call does no harm, because the script passes the time that is left. A pause inside it removes a complete key,
-- which counts nothing any more.
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
