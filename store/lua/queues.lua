-- The queues of conversations, for create.lua, cancel.lua, save.lua and park.lua. All of a partition are in one zset whose
-- members have score 0, so they are in the order of their bytes:
--   <bytes of the conversation's name> : <name> \0 <number, 16 digits> \0 <turn>
-- With its length before it no name begins another. A turn is queued while it has a member, and its record says so (qd).
-- All of this and `open` are in one slot and change in one script, so a store that goes back has lost them together: the
-- open turn exists and lives, and so do all that are queued. Who is next is looked at all the same (a node of a release that
-- knows no queues may have ended it): a dead turn must not be in the way.
-- One function gives them all: most runs need none, and making a function takes time.
local function queues(queue)
  local the = {}

  local function range_of(conversation)
    local name = #conversation .. ':' .. conversation
    return name, '[' .. name .. NUL, '(' .. name .. '\1'
  end

  function the.first(conversation, limit)
    local name, low, high = range_of(conversation)
    local turns = call('ZRANGE', queue, low, high, 'BYLEX', 'LIMIT', 0, limit)
    for n, member in ipairs(turns) do turns[n] = string.sub(member, #name + 19) end
    return turns
  end

  function the.count(conversation)
    local _, low, high = range_of(conversation)
    return call('ZLEXCOUNT', queue, low, high)
  end

  function the.enter(conversation, key, id)
    local name, low, high = range_of(conversation)
    local last = call('ZRANGE', queue, high, low, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
    local number = string.format('%016.0f', last and string.sub(last, #name + 2, #name + 17) + 1 or 1)
    call('ZADD', queue, 0, name .. NUL .. number .. NUL .. id)
    call('HSET', key, 'qd', number)
  end

  function the.leave(key, turn, id)
    if not turn.queued then return end
    call('ZREM', queue, range_of(call('HGET', key, 'cv')) .. NUL .. turn.queued .. NUL .. id)
    call('HDEL', key, 'qd')
    turn.queued = false
  end

  -- Who is next where a turn ends that `open` names: nil where nobody is. The record of the next has to be named, which the
  -- caller cannot know before: `named` has the keys of records by turn. Where the one that is needed is not among them nothing
  -- may be changed, and the answer is NEXT with its name.
  function the.heir(conversation, named, count)
    for _, id in ipairs(the.first(conversation, count + 1)) do
      if not named[id] then return {unnamed = id} end
      local turn = read(named[id])
      if turn and turn.state ~= 'T' then return {id = id, key = named[id], turn = turn} end
    end
  end

  function the.promote(open, conversation, heir)
    local name, low, high = range_of(conversation)
    if not heir then
      call('HDEL', open, conversation)
      call('ZREMRANGEBYLEX', queue, low, high)
      return
    end
    call('HSET', open, conversation, heir.id)
    call('ZREMRANGEBYLEX', queue, low, '(' .. name .. NUL .. heir.turn.queued)
    the.leave(heir.key, heir.turn, heir.id)
    rouse(heir.key, heir.turn, heir.id)
    ring(heir.key, heir.turn, heir.id)
  end

  return the
end

-- What the end of a root means for its conversation: nil where it is not the open turn of one; else what may have to be named
-- (`unnamed`), and `settle`. `ids` are the turns named; the last of KEYS are `queue` and the record of each.
local function estate_of(open, key, id, ids)
  local conversation = call('HGET', key, 'cv')
  if not conversation or call('HGET', open, conversation) ~= id then return nil end
  local count, named = #ids, {}
  for n, it in ipairs(ids) do named[it] = KEYS[#KEYS - count + n] end
  local line = queues(KEYS[#KEYS - count])
  local heir = line.heir(conversation, named, count)
  return {unnamed = heir and heir.unnamed, settle = function() line.promote(open, conversation, heir) end}
end
