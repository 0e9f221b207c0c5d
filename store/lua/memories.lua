-- The memory of a conversation, for remember.lua and save.lua: from KEYS[first] on relay, m, o, x (see prelude.lua).
local function memory_of(conversation, first)
  local RELAY, ENTRIES, ORDER, WAITING = KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
  local memory = {}

  -- Numbers of changes are times where they can be, so that they go on growing when a memory has been dropped.
  local function next_change()
    local change = int(math.max(now, (call('HGET', ENTRIES, 'c') or 0) + 1))
    call('HSET', ENTRIES, 'c', change)
    return change
  end

  function memory.read(id)
    local place, version, at, shown, body = string.match(call('HGET', ENTRIES, 'e' .. id) or '',
                                                         '^(%d+)%z(%d+)%z%d+%z(%d+)%z(%d)%z(.*)$')
    return place and {place = place, version = tonumber(version), at = at, shown = shown, body = body}
  end

  function memory.holds(entry, shown, body) return entry and entry.shown == shown and entry.body == body end

  -- Appends an entry, or replaces the one that is there (`was`).
  function memory.write(id, was, shown, body, relays)
    local change, place = next_change(), was and was.place
    if not was then
      place = call('RPUSH', ORDER, shown .. id)
    elseif was.shown ~= shown then
      call('LSET', ORDER, place - 1, shown .. id)
    end
    local numbers = {place, was and int(was.version + 1) or '0', change, was and was.at or int(now), shown}
    call('HSET', ENTRIES, 'e' .. id, table.concat(numbers, NUL) .. NUL .. body)
    if not relays and not (was and call('ZSCORE', WAITING, id)) then return end
    call('ZADD', WAITING, change, id)
    call('ZADD', RELAY, 'NX', int(now), conversation)
  end

  return memory
end
