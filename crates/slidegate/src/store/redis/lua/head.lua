-- Slidegate: admits and settles, exactly and atomically, by the clock of this server.
--
-- KEYS   the keys that are counted in, and those of their notes where notes are apart and may be needed, each once
-- ARGV   [1] the plan: little-endian doubles, read in order by `take`
--        [2..] texts the plan refers to by number: shapes, digits of request ids, sequence numbers
-- reply  little-endian doubles: the instant in microseconds, then what `admit.lua` or `settle.lua` says
--
-- Invariant: every number is a whole one below 2^51, or that and a half or a quarter, so doubles are exact. Numbers
-- go to hot calls as text made with `%d`; `..` would print 14 digits, and `redis.call` by itself prints 17, slowly.
-- `%` and `/` are used only where their result is exact.
--
-- Bound: a call reads, sums up and removes at most as many entries as `READS` and `TRIMS` allow, whatever is stored and whatever
-- is asked. A wait that needs more is answered with a lower bound. If more has left than one call may sum up, the call removes
-- a part of it, decides nothing and replies the integer 1: the caller sends the same call again.
--
-- Why parts: a script runs from its top each time, so it is put together from the parts a batch needs.
-- Every kind of counter has the same functions, those of `trait Counter` in Rust.

local call, format = redis.call, string.format

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Entries that this call may still read one by one, and entries that have left and that it may still remove. A packed record
-- is an eighth of a read.
local READS, TRIMS = 1000, 2000
local reads, trims = READS, TRIMS

-- Whether more has left than this call may sum up.
local unfinished = false

-- Keys that this call has removed in order to write them anew.
local dropped = {}

-- Whether this node may write a key that was just emptied. While a slot moves to another node of a cluster, a key that is missing
-- here belongs to the other node, and a write to it fails. So keys are emptied before anything is counted, and if this is
-- false the call ends and is sent again.
local function is_here(key)
  return type(redis.pcall('EXISTS', key)) == 'number'
end

-- Removes a key that this call writes anew. Returns `is_here`.
local function drop_key(key)
  if dropped[key] then return true end
  dropped[key] = true
  call('UNLINK', key)
  return is_here(key)
end

-- What is answered before the rest of the script is set up, by the number of its ask in the plan.
local answered = {}
