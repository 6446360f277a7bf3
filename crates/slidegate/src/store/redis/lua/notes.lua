
-- Notes on single admissions: members of a sorted set, scored with the instant of their admission, so that
-- they leave with it. Windows have a key of their own for them, which only a call that needs notes names: what counts
-- stays as it would be without them. Counters have them in the key itself.
--
--   id:<digits>[/k]      this request was admitted
--   settled:<hex>.<seq>  this admission was settled; the first settlement stands
--   void:<hex>.<seq>     it was a refund, and its request id may come again
--   cost:<hex>           what a record of a packed log costs, as a score below zero: see packed.lua
--   moved:<hex>.<seq>    this admission was extended: it counts from the instant that this is scored with
--
-- An admission without an id is numbered by its place among those of its instant. One with an id has a number
-- made from its id and cost: 17 digits and two for k, which counts how often it was refunded and came again in one instant.
-- The note has the same digits, so a settlement shows whether the number was given out.
--
-- Bound: an admission has at most one note of each kind, all of which leave with it.
--
-- A call that does not name the notes may start a count anew, so the count says whether it has any (`s.has_notes`).
-- If it has none, what is found there is of a count before it, and goes before the first is written.

local function note_name(what, line, at, seq)
  return what .. format('%x', at % line.modulus) .. '.' .. seq
end

-- When this was noted. A name may come again after its instant has left, so the instant must agree.
local function noted(s, name)
  return s.has_notes and tonumber(call('ZSCORE', s.notes, name) or nil)
end

local function add_note(s, name, at)
  local marks = s.marks or {}
  marks[#marks + 1] = format('%d', at)
  marks[#marks + 1] = name
  s.marks = marks
end

-- Removes notes up to the instant `to`: as many as the call may. Those that stay are not found, because nothing asks for what has
-- left. Says how many stay.
local function trim_notes(key, to)
  local n = call('ZCOUNT', key, '1', to)
  if n == 0 then return 0 end
  if n <= trims then
    trims = trims - n
    call('ZREMRANGEBYSCORE', key, '1', to)
    return 0
  end
  -- By name: many may have one score.
  local most = math.min(math.floor(trims), 1000)
  if most > 0 then
    trims = trims - most
    local header = call('ZCOUNT', key, '-inf', '0')
    call('ZREM', key, unpack(call('ZRANGE', key, format('%d', header), format('%d', header + most - 1))))
  end
  return n - most
end

-- Writes the notes of a window, which live as long as what they are about: a clock that is set back may bring back
-- what it had not let go.
local function write_notes(s, line)
  if not s.has_notes then drop_key(s.notes) end
  call('ZADD', s.notes, unpack(s.marks))
  -- After that, so that the key is never empty: see `is_here`.
  if s.has_notes then trim_notes(s.notes, format('%d', s.last - line.window)) end
  call('PEXPIREAT', s.notes, format('%d', math.ceil((math.max(s.at, s.newest) + line.life) / 1000)))
  dropped[s.notes], s.has_notes = nil, true
end

-- The admission of this request, if it still counts: its instant and k.
local function known(s, line, id, digits)
  s.ids = s.ids or {}
  local seen = s.ids[id]
  if seen then return seen[1], seen[2] end
  local at = noted(s, id)
  if not at or kinds[line.kind].past(s, line, at) then return nil end
  local k = 0
  while noted(s, note_name('void:', line, at, digits .. format('%02d', k))) == at do
    k = k + 1
    if k > 99 or noted(s, id .. '/' .. k) ~= at then
      s.ids[id .. '/'] = { at, k }
      return nil
    end
  end
  return at, k
end

-- Remembers that this request was admitted at `at`; says its k.
local function remember(s, id, at)
  local k, before = 0, s.ids and s.ids[id .. '/']
  if before and before[1] == at then k = math.min(before[2], 99) end
  s.ids = s.ids or {}
  s.ids[id] = { at, k }
  add_note(s, k == 0 and id or id .. '/' .. k, at)
  return k
end
