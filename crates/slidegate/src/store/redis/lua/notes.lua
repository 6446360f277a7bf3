
-- Notes on single admissions: members of a sorted set, scored with the instant of their admission, so that a note
-- expires with its admission. Windows keep notes in a separate key, and only a call that needs notes has that key in
-- KEYS: the key that counts looks the same with and without notes. Counters keep notes in the key that counts.
--
--   id:<digits>[/k]      this request was admitted
--   settled:<hex>.<seq>  this admission was settled; later settlements change nothing
--   void:<hex>.<seq>     the settlement was a refund, and the request id may be used again
--   cost:<hex>           cost of a record of a packed log, as a score below zero: see packed.lua
--   moved:<hex>.<seq>    this admission was extended: it counts from the instant that is the score of this note
--   heal:...             a node wrote admissions back: see restore.lua
--
-- An admission without an id is numbered by its ordinal among the admissions of its instant. An admission with an id
-- has a number made from its id and cost: 17 digits, and two more for k, which counts how often the request was
-- refunded and admitted again in one instant. The note of the admission has the same digits, so the script can tell
-- whether the number in a settlement was given out.
--
-- Cost: an admission has at most one note of each kind, and all of them expire with it.
--
-- A call without the notes key in KEYS may start a count anew, so the count itself records whether it has notes
-- (`s.has_notes`). If the count has no notes, members of the notes key belong to an earlier count, and the script
-- removes them before it writes the first note.

local function note_name(what, line, at, seq)
  return what .. format('%x', at % line.modulus) .. '.' .. seq
end

-- Returns the instant of the note `name`; a false value if there is no such note. The same name may be used again after
-- its instant has expired, so the caller must compare the returned instant with the instant of the admission.
local function noted_at(s, name)
  return s.has_notes and tonumber(call('ZSCORE', s.notes, name) or nil)
end

local function add_note(s, name, at)
  local marks = s.marks or {}
  marks[#marks + 1] = format('%d', at)
  marks[#marks + 1] = name
  s.marks = marks
end

-- Removes notes up to the instant `to`, as many as the budget of the call allows. Notes that are left do no harm,
-- because no call looks up an expired admission. Returns the number of notes that are left.
local function trim_notes(key, to)
  local n = call('ZCOUNT', key, '1', to)
  if n == 0 then return 0 end
  if n <= trims then
    trims = trims - n
    call('ZREMRANGEBYSCORE', key, '1', to)
    return 0
  end
  -- The notes are removed by rank, because many notes may have the same score.
  local most = math.min(math.floor(trims), 1000)
  if most > 0 then
    trims = trims - most
    local header = call('ZCOUNT', key, '-inf', '0')
    call('ZREM', key, unpack(call('ZRANGE', key, format('%d', header), format('%d', header + most - 1))))
  end
  return n - most
end

-- Writes the notes of a window. Notes are kept as long as their entries are stored, because a clock that is set back
-- may make expired entries count again.
local function write_notes(s, line)
  if not s.has_notes then drop_key(s.notes) end
  call('ZADD', s.notes, unpack(s.marks))
  -- The old notes are trimmed after the ZADD, so that the key is never empty: see `is_here`.
  if s.has_notes then trim_notes(s.notes, format('%d', s.last - line.window)) end
  expire_at(s.notes, math.max(s.at, s.newest) + line.ttl)
  dropped[s.notes], s.has_notes = nil, true
end

-- Returns the instant of the admission of this request, and its k (explained above), if the admission still counts.
local function find_admission(s, line, id, digits)
  s.ids = s.ids or {}
  local seen = s.ids[id]
  if seen then return seen[1], seen[2] end
  local at = noted_at(s, id)
  if not at or kinds[line.kind].past(s, line, at) then return nil end
  local k = 0
  while noted_at(s, note_name('void:', line, at, digits .. format('%02d', k))) == at do
    k = k + 1
    if k > 99 or noted_at(s, id .. '/' .. k) ~= at then
      s.ids[id .. '/'] = { at, k }
      return nil
    end
  end
  return at, k
end

-- Adds the note that this request was admitted at `at`; returns the k of the admission.
local function remember(s, id, at)
  local k, before = 0, s.ids and s.ids[id .. '/']
  if before and before[1] == at then k = math.min(before[2], 99) end
  s.ids = s.ids or {}
  s.ids[id] = { at, k }
  add_note(s, k == 0 and id or id .. '/' .. k, at)
  return k
end
