
local fmod = math.fmod

local MAX_TOTAL = 2251799813685247

local plan, position = ARGV[1], 1

local function take(fields)
  local a, b, c, d, e, f, g, h, i, j, k, l, m = struct.unpack(fields, plan, position)
  position = position + 8 * (#fields - 1)
  return a, b, c, d, e, f, g, h, i, j, k, l, m
end

-- What instants are named modulo: short, and unique for twice as long as they count. The time that a bucket
-- takes to fill changes with its rate, and what is held may be extended, so there they are named in full.
local function modulus_of(kind, horizon, held)
  if kind > 2 or held then return 2 ^ 52 end
  local modulus = 16
  while modulus <= 2 * horizon do modulus = modulus * 16 end
  return modulus
end

-- What is stored is not ours, so it is left alone.
local function check_ours(key, stored)
  if stored and not string.find(stored, '^%l[%l-]+ %d') or not stored and call('EXISTS', key) == 1 then
    error('SGFOREIGN')
  end
end

local kinds = {}

-- What warm.lua has, where a limit climbs.
local warm
