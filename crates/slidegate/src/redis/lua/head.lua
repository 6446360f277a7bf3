-- Slidegate: admits and settles, exactly and atomically, by the clock of this server.
--
-- KEYS   the keys that are counted in, each once; a packed key is followed by the key of its notes
-- ARGV   [1] the plan: little-endian doubles, read in order by `take`
--        [2..] texts the plan refers to by number: shapes, request ids, sequence numbers
-- reply  [1] the instant in microseconds, then what `admit.lua` or `settle.lua` says
--
-- Invariant: every number is a whole one below 2^53, so doubles are exact. Numbers go to `redis.call` as
-- numbers, which it prints with 17 digits; `..` would print 14. `%` and `/` are used only where their result
-- is exact: by powers of two, or of what divides.
--
-- Why parts: a script runs from its top each time, so it is put together from the parts a batch needs.
-- Every kind of counter has the same functions, those of `trait Counter` in Rust.

local call, unpack_doubles, format, fmod = redis.call, struct.unpack, string.format, math.fmod

local MAX_TOTAL = 9007199254740991

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local plan, position = ARGV[1], 1

local function take(fields)
  local a, b, c, d, e, f, g, h, i, j, k, l = unpack_doubles(fields, plan, position)
  position = position + 8 * (#fields - 1)
  return a, b, c, d, e, f, g, h, i, j, k, l
end

-- What instants are named modulo: short, and unique for twice as long as they count. The time that a bucket
-- takes to fill changes with its rate, so there they are named in full.
local function modulus_of(kind, horizon)
  if kind > 2 then return 2 ^ 52 end
  local modulus = 16
  while modulus <= 2 * horizon do modulus = modulus * 16 end
  return modulus
end

local kinds = {}
