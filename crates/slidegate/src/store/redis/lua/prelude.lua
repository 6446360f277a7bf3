-- Start of every script: reads the clock, sets the budgets of the call, and defines the functions that empty keys.
--
-- KEYS   each key that holds a count, and each key that holds only notes if the call may need the notes; each key once
-- ARGV   [1] the plan: records, read in order
--        [2..] texts that the plan refers to by index: quota tags, digits of request ids, sequence numbers
-- reply  records: `ReplyHead`, then the records that the last part of the script describes, such as `admit.lua`
--
-- codec/record.rs declares the records and the codes, whose names begin with a capital letter. codec/lua.rs replaces
-- these names by formats and numbers when Rust assembles a script.
--
-- Invariant: each number is a whole number below 2^52, so doubles are exact. A score may be such a number plus a half
-- or a quarter. Numbers for frequent commands are formatted with `%d`: `..` would print only 14 digits, and
-- `redis.call` prints 17 digits, slowly. `%` and `/` are used only where their result is exact.
--
-- Cost: a call reads, sums up and removes at most as many entries as `READS` and `TRIMS` allow, for any stored data and
-- any batch. If a wait depends on more entries than that, the reply contains a lower bound of the wait. If more entries
-- have expired than one call may sum up, the call removes a part of them, decides nothing and replies the integer 1:
-- the caller sends the same call again.
--
-- Redis runs a script from its top on every call, so Rust assembles each script from only the parts that a batch
-- needs. Every kind of counter has the same functions, those of `trait Counter` in Rust.

local call, format, struct_pack, struct_unpack = redis.call, string.format, struct.pack, struct.unpack

-- The plan, and the offset of its next unread byte.
local plan, position = ARGV[1], 0

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Remaining budgets of this call: entries that it may read one by one, and expired entries that it may remove.
-- Reading a record of a packed log costs an eighth of a read, or half a read if the records are dropped one by one.
local READS, TRIMS = 700, 900
local reads, trims = READS, TRIMS

-- True if more entries have expired than this call may sum up.
local unfinished = false

-- Keys that this call has removed in order to write them anew.
local dropped = {}

-- Returns true if this node may write a key that was just emptied. While a slot moves to another node of a cluster, a
-- key that is missing here belongs to the other node, and a write to it fails. So the script empties keys before it
-- counts anything. If this function returns false, the call ends and the caller sends it again.
local function is_here(key)
  return type(redis.pcall('EXISTS', key)) == 'number'
end

-- Removes a key that this call writes anew. Returns the result of `is_here`.
local function drop_key(key)
  if dropped[key] then return true end
  dropped[key] = true
  call('UNLINK', key)
  return is_here(key)
end

-- Replies of the fast path, by the index of the request in the plan. The fast path runs before the other parts of the
-- script are defined.
local early_replies = {}
