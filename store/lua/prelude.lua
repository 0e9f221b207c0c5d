-- What the scripts share. Before each script the loader puts clock.lua, and of this file, of queues.lua and of memories.lua those
-- parts whose names it uses: making a function takes time in every run, needed or not.
--
-- What is short is told in one list, packed by msgpack, which is the first of ARGV: to take one apart costs less than many ARGV.
-- What is not text stands behind it.
--
-- Every key of a script carries the tag {ns:pp} of one partition, so all are in one slot. KEYS 1 to 5 are always:
--   wake    zset  turn -> ms from which it may be claimed; only turns without an owner
--   leases  zset  turn -> ms at which its lease ends; only turns with an owner
--   turns   zset  turn -> 1e13 * number of its status + created: the turns of a status, by creation
--   bell    channel: 'work <turn>' for its owner, 'due <turn> <wake> <agent@version>' for who may claim it from wake on,
--           'live <root>' from who begins to watch a tree
--   news    channel: 'saved <turn> <version> <last event>'
--   l:<root> channel: what is shown of a tree and not stored (no script uses it)
-- Other keys of a partition:
--   waits   zset  wait id -> created      open    hash  conversation -> its open turn
--   over    zset  root -> ms at which its tree may be dropped      parked  zset  quarantined turn -> since
--   queue   zset  who waits behind the open turns, all of score 0 (queues.lua)
--   relay   zset  conversation -> ms since which changes of its memory wait to be passed on
-- Keys of a tree:
--   r:<root> hash  receipts: w<wait> -> body, c<command> -> wait, k<call> -> wait
--   y:<root> hash  replies: message id -> at \0 body; lives 10 minutes after the last one
--   k:<root> list  children
-- Keys of a conversation (memories.lua):
--   m:<conversation> hash  e<entry id> -> place \0 version \0 change \0 at \0 shown \0 body, c -> number of the last change
--   o:<conversation> list  1 or 0 (shown), then the entry id, by place
--   x:<conversation> zset  entry id that waits to be passed on -> its newest change
--   n:<conversation> hash  notes: name -> version \0 body
-- Keys of a turn, always named in this order:
--   t hash: st state S R A T, own activation, nd node, ep epoch, lu lease end, v version, sid last save id, sc schema,
--           ss status (its number), ev number of events, cx open cancel, ca acknowledged cancel, cr crashes, q quarantine,
--           qa since, us usage, pa parent, ag agent, av its version, cv conversation, tn tenant, dg digest, cre created,
--           upd updated, qd number in the queue of its conversation; in a root's also su usage of the tree and tv saves
--           below it plus all qa of the tree. Fields that say nothing are absent, and so is su where nothing below the root has
--           used anything. A value over 64 bytes makes Redis store all of them in a larger form (about 1 KB more).
--   i list: unread mail, message id \0 command \0 wait \0 at \0 body
--   d zset: message ids seen, at; lives 24 hours after the last one
--   s string: snapshot
--   h list: history
--   e list: event batches, first \0 count \0 epoch \0 body
--   w list: open waits, wait id \0 row
local call, NUL = redis.call, '\0'
local WAKE, LEASES, TURNS, BELL, NEWS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local REPLIES_MS, SEEN_MS = 600000, 86400000

local function int(n) return string.format('%.0f', n) end
local function bit(truth) return truth and 1 or 0 end

local place = 0
local function arg() place = place + 1 return ARGV[place] end
local function num() return tonumber(arg()) end
local function optional() local text = arg() return text ~= '' and text or nil end
local function args() local list = {} for n = 1, num() do list[n] = arg() end return list end

local function keys_of_turn(first)
  return {t = KEYS[first], i = KEYS[first + 1], d = KEYS[first + 2], s = KEYS[first + 3], h = KEYS[first + 4],
          e = KEYS[first + 5], w = KEYS[first + 6]}
end

-- A claim is nil, or what ClaimBy holds, by its names; no `agents` means any.
local function read(key)
  local v = call('HMGET', key, 'st', 'own', 'nd', 'ep', 'lu', 'v', 'sid', 'sc', 'ev', 'ss', 'cx', 'ca', 'cr', 'q', 'cre',
                 'us', 'qd', 'su')
  if not v[1] then return nil end
  return {state = v[1], owner = v[2], node = v[3], epoch = tonumber(v[4] or 0),
          lease = tonumber(v[5] or 0), version = tonumber(v[6]), save_id = v[7], schema = tonumber(v[8]),
          events = tonumber(v[9]), status = v[10], cancel = v[11], acked = v[12], crashes = tonumber(v[13] or 0),
          quarantine = v[14], created = tonumber(v[15]), usage = v[16] or '0,0,0,0', queued = v[17], total = v[18]}
end

local function shows(turn, activation, epoch) return turn.owner == activation and turn.epoch == epoch end
local function parked(turn) return turn.quarantine and not turn.cancel and not turn.acked end
local function rests(turn) return turn.queued or parked(turn) end -- nothing wakes it

local function runs(by, key, turn)
  if turn.schema > by.schema then return false end
  if not by.agents or turn.cancel or turn.acked then return true end -- to end it needs no agent
  local agent = call('HMGET', key, 'ag', 'av')
  local name = agent[1] .. '@' .. agent[2]
  for _, known in ipairs(by.agents) do
    if known == name then return true end
  end
  return false
end

-- Sharded channels are declared as KEYS: every message stays in the slot of its partition.
local function ring_due(key, id, wake)
  local agent = call('HMGET', key, 'ag', 'av')
  call('SPUBLISH', BELL, 'due ' .. id .. ' ' .. int(wake) .. ' ' .. agent[1] .. '@' .. agent[2])
end

local function ring_saved(id, version, events)
  call('SPUBLISH', NEWS, 'saved ' .. id .. ' ' .. int(version) .. ' ' .. int(events))
end

-- A turn was roused: its owner has to look, or, where nobody owns it, whoever may claim it.
local function ring(key, turn, id)
  if turn.owner then
    call('SPUBLISH', BELL, 'work ' .. id)
  elseif not rests(turn) then
    ring_due(key, id, now)
  end
end

local function index_status(id, status, created)
  call('ZADD', TURNS, (tonumber(status) or 0) * 1e13 + created, id)
end

-- Appends the next `count` of ARGV to a list.
local function push(key, count)
  local first = place + 1
  place = place + count
  for n = first, place, 1000 do call('RPUSH', key, unpack(ARGV, n, math.min(n + 999, place))) end
end

-- NewTurn: turn, parent, agent, agent_version, conversation, tenant, digest, schema, status, wake, number of messages, number of
-- events; its bodies are snapshot, messages, and, if there are any, a batch of events
local function new_turn(it)
  return {id = it[1], parent = it[2], agent = it[3], agent_version = it[4], conversation = it[5], tenant = it[6], digest = it[7],
          schema = it[8], status = it[9], wake = it[10], messages = it[11], events = it[12],
          last = place + 1 + it[11] + (it[12] > 0 and 1 or 0)}
end

local function add(key, new)
  local fields = {'ev', new.events, 'st', 'S', 'v', 0, 'ep', 0, 'cre', now, 'upd', now, 'ag', new.agent, 'av', new.agent_version,
                  'dg', new.digest, 'sc', new.schema, 'ss', new.status}
  if new.parent then fields[#fields + 1] = 'pa' fields[#fields + 1] = new.parent end
  if new.conversation then fields[#fields + 1] = 'cv' fields[#fields + 1] = new.conversation end
  if new.tenant then fields[#fields + 1] = 'tn' fields[#fields + 1] = new.tenant end
  call('HSET', key.t, unpack(fields))
  call('SET', key.s, arg())
  push(key.h, new.messages)
  if new.events > 0 then call('RPUSH', key.e, arg()) end
  index_status(new.id, new.status, now)
  return {state = 'S', owner = false, node = false, epoch = 0, version = 0, schema = new.schema,
          events = new.events, status = new.status, crashes = 0, created = now}
end

local function rouse(key, turn, id)
  if turn.owner or rests(turn) then return end
  if turn.state ~= 'R' then call('HSET', key, 'st', 'R') end
  call('ZADD', WAKE, 'LT', int(now), id)
end

local function schedule(key, turn, id, wake)
  if not wake then return end
  if wake <= now then return rouse(key, turn, id) end
  call('ZADD', WAKE, int(wake), id)
end

local function due(id)
  local wake = call('ZSCORE', WAKE, id)
  return wake and tonumber(wake) <= now, wake
end

local function own(key, turn, id, by)
  local lease = now + by.lease_ms
  if turn.owner == by.activation then -- its own claim, whose reply was lost
    call('HSET', key.t, 'lu', lease)
  else
    turn.epoch = math.max(turn.epoch + 1, now)
    call('HSET', key.t, 'st', 'A', 'own', by.activation, 'nd', by.node, 'ep', turn.epoch, 'lu', lease)
    call('ZREM', WAKE, id)
  end
  call('ZADD', LEASES, lease, id)
  return {'CLAIMED', turn.epoch, turn.version, turn.schema, call('GET', key.s), now,
          call('LRANGE', key.i, 0, by.batch - 1), turn.cancel or false, turn.crashes,
          by.tail > 0 and call('LRANGE', key.h, -by.tail, -1) or {}, call('LLEN', key.h), turn.events,
          bit(turn.quarantine)}
end

local function rouse_or_own(key, turn, id, by, wakes, fresh)
  if by and turn.state ~= 'T' then
    local fits = turn.owner == by.activation
    if not turn.owner then fits = not rests(turn) and (wakes or due(id)) and runs(by, key.t, turn) end
    if fits then return own(key, turn, id, by) end
  end
  if wakes then rouse(key.t, turn, id) ring(key.t, turn, id) end
  return {'DELIVERED', now, turn.node, bit(fresh), bit(turn.quarantine)}
end

-- Whether mail waits for so long that its id may no longer be among those seen.
local function old(mail) return tonumber(string.match(mail, '^%Z*%z%Z*%z%Z*%z(%d+)')) + SEEN_MS <= now end

local function seen(key, message)
  local at = call('ZSCORE', key.d, message)
  if at and tonumber(at) + SEEN_MS > now then return true end
  local oldest = call('LINDEX', key.i, 0)
  if not oldest or not old(oldest) then return false end
  for _, mail in ipairs(call('LRANGE', key.i, 0, -1)) do
    if string.sub(mail, 1, #message + 1) == message .. NUL then return true end
  end
  return false
end

local function see(key, message)
  call('ZREMRANGEBYSCORE', key.d, '-inf', now - SEEN_MS)
  call('ZADD', key.d, 'NX', now, message)
  call('PEXPIRE', key.d, SEEN_MS)
end

-- Mail: message id, command id, wait id; its body is the next of ARGV
local function mail_of(it) return {id = it[1], command = it[2], wait = it[3], body = arg()} end

local function post(key, mail)
  call('RPUSH', key.i, mail.id .. NUL .. (mail.command or '') .. NUL .. (mail.wait or '') .. NUL .. int(now) .. NUL .. mail.body)
  see(key, mail.id)
end

local function send(key, id, mail)
  local turn = read(key.t)
  if not turn or turn.state == 'T' or seen(key, mail.id) then return end
  post(key, mail)
  rouse(key.t, turn, id)
  ring(key.t, turn, id)
end

local function raise_cancel(key, turn, cause)
  if turn.cancel or turn.acked then return false end
  call('HSET', key, 'cx', cause)
  turn.cancel = cause
  return true
end

-- Whether a turn with an open flag was parked since, so that the flag has to wake it once more.
local function stuck(turn, id) return turn.cancel and not call('ZSCORE', WAKE, id) end

local function answer(replies, message, body)
  call('HSET', replies, message, int(now) .. NUL .. body)
  call('PEXPIRE', replies, REPLIES_MS)
  local size = call('HLEN', replies)
  if size <= 64 or size <= tonumber(call('HGET', replies, '') or 64) then return end
  local all, left = call('HGETALL', replies), 0 -- rarely: the bound, kept under the empty id, doubles with what is left
  for n = 1, #all, 2 do
    local at = tonumber(string.match(all[n + 1], '^(%d+)%z') or now)
    if at + REPLIES_MS <= now then call('HDEL', replies, all[n]) else left = left + 1 end
  end
  call('HSET', replies, '', int(math.max(64, 2 * left)))
end

local function answered(replies, message)
  local at, body = string.match(call('HGET', replies, message) or '', '^(%d+)%z(.*)$')
  return at and tonumber(at) + REPLIES_MS > now and body
end

local function release(key, id, state)
  call('HSET', key, 'st', state)
  call('HDEL', key, 'own', 'nd', 'lu')
  call('ZREM', LEASES, id)
end

local function close_wait(key, waits, wait)
  for _, row in ipairs(call('LRANGE', key.w, 0, -1)) do
    if string.sub(row, 1, #wait + 1) == wait .. NUL then
      call('LREM', key.w, 1, row)
      call('ZREM', waits, wait)
      return
    end
  end
end

-- Since when a turn is parked is part of what its root says of the tree, so that whoever watches that sees it change.
local function park(key, root, parked, id, reason)
  local before = call('HGET', key, 'qa') or 0 -- parked again by the owner that a cancel had given it
  call('HSET', key, 'q', reason, 'qa', int(now))
  call('ZADD', parked, int(now), id)
  call('HINCRBY', root, 'tv', int(now - before))
end

local function unpark(key, root, parked, id)
  local since = call('HGET', key, 'qa')
  call('HDEL', key, 'q', 'qa')
  call('ZREM', parked, id)
  if since then call('HINCRBY', root, 'tv', '-' .. since) end
end

-- What the end of a turn does beside its own state: `beside` names waits, over, parked, replies, root record. The end of a root
-- also frees its conversation (queues.lua).
local function finish(key, turn, beside, id, closing, retention)
  if turn.quarantine then unpark(key.t, beside.root, beside.parked, id) end
  for _, mail in ipairs(call('LRANGE', key.i, 0, -1)) do answer(beside.replies, string.match(mail, '^%Z*'), closing) end
  for _, row in ipairs(call('LRANGE', key.w, 0, -1)) do call('ZREM', beside.waits, string.match(row, '^%Z*')) end
  call('DEL', key.i, key.w)
  if beside.root ~= key.t then return end
  call('ZADD', beside.over, int(now + retention), id)
end
