-- SAVE: commit one transition of a turn, with all that it does beside the turn.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 to 12 the turn's t i d s h e w, 13 root record; then, where there is anything
--       beside the turn, 14 waits, 15 receipts, 16 replies; at the end, and with other turns, also 17 over, 18 parked, 19 open,
--       20 children, then t i d s h e of each child, t i d of each turn to deliver to; then, with cancels, queue and t of each turn
--       to cancel; with memory (then all of these) relay and the conversation's m o x; at the end of a root queue and t of each
--       turn named
-- ARGV: 1 a list (msgpack): turn, activation, epoch, version, save_id, mode (K S R T), lease_ms, wake, schema, status,
--       progress, ack_cancel, usage ('in,out,total,calls'), retention_ms, batch, messages_at, number of messages, events_at,
--       number of events, beside, others, memory, turns named; where
--         beside is nil or: consumed message ids, receipts (wait, command, call), message ids of replies, closed waits,
--           opened waits (id, created)
--         others is nil or: children (NewTurn), deliveries (turn, Mail), cancels (turn, cause)
--         memory is nil or: conversation, relays, entries (id, shown)
--       then snapshot; closing (at the end); messages; events (one batch, if any); what is stored of each receipt, reply, opened
--       wait, child (see NewTurn), delivery and entry
-- Replies: FENCED node | BEHIND version messages events | CONFLICT version | NEXT turn (nothing was done: name it)
--          | SAVED version now owned mail[] cancel usage replayed
local head, key, ROOT = cmsgpack.unpack(ARGV[1]), keys_of_turn(6), KEYS[13]
local id, activation, epoch, version, save_id, mode, lease, wake, schema, status = unpack(head, 1, 10)
local messages_at, messages, events_at, events, beside, others = unpack(head, 16, 21)
local turn = read(key.t)
if not turn then return {'FENCED', false} end
-- Of a root without turns below it `su` would say what `us` says, and is absent.
local above = ROOT ~= key.t and call('HMGET', ROOT, 'su', 'us')
local total = above and (above[1] or above[2] or '0,0,0,0') or turn.total or turn.usage
local owned, replayed = shows(turn, activation, epoch), turn.save_id == save_id
if replayed then
  call('HSET', key.t, 'sid', save_id) -- changes nothing, but gives a WAIT on this connection something to wait for
  return {'SAVED', turn.version, now, bit(owned), owned and call('LRANGE', key.i, 0, head[15] - 1) or {},
          owned and turn.cancel or false, total, 1}
end
if not owned then return {'FENCED', turn.node} end
local length = call('LLEN', key.h)
if turn.version < version or length < messages_at or turn.events < events_at then
  return {'BEHIND', turn.version, length, turn.events}
end
if turn.version > version or length > messages_at or turn.events > events_at then return {'CONFLICT', turn.version} end

local estate = mode == 'T' and ROOT == key.t and estate_of(KEYS[19], key.t, id, head[23])
if estate and estate.unnamed then return {'NEXT', estate.unnamed} end

-- state, history, events
call('SET', key.s, ARGV[2])
place = 2
local closing = mode == 'T' and arg()
push(key.h, messages)
if events > 0 then call('RPUSH', key.e, arg()) end
local fields = {'v', version + 1, 'sid', save_id, 'upd', now}
local function set(name, value) fields[#fields + 1] = name fields[#fields + 1] = value end
if schema ~= turn.schema then set('sc', schema) end
if events > 0 then set('ev', events_at + events) end
if tostring(status) ~= turn.status then
  set('ss', status)
  index_status(id, status, turn.created)
end
if head[11] and turn.crashes > 0 then call('HDEL', key.t, 'cr') end
if head[12] and turn.cancel then
  set('ca', turn.cancel)
  call('HDEL', key.t, 'cx')
  turn.acked, turn.cancel = turn.cancel, false
end
local usage = head[13]
if turn.usage ~= usage then
  if not above and not turn.total then
    total = usage
  else
    local function numbers(text) return {string.match(text, '(%d+),(%d+),(%d+),(%d+)')} end
    local sum, was, is = numbers(total), numbers(turn.usage), numbers(usage)
    for n = 1, 4 do sum[n] = int(sum[n] - was[n] + is[n]) end
    total = table.concat(sum, ',')
  end
  set('us', usage)
  if above then call('HSET', ROOT, 'su', total) elseif turn.total then set('su', total) end
end
if ROOT ~= key.t then call('HINCRBY', ROOT, 'tv', 1) end

if beside then
  local WAITS, RECEIPTS, REPLIES = KEYS[14], KEYS[15], KEYS[16]
  -- By exact id, never by position: after a failover the head may be mail that this owner has not seen. It may also have
  -- forgotten mail that this owner has consumed: its id must count as seen when the sender repeats it.
  for _, message in ipairs(beside[1]) do
    local prefix = message .. NUL
    local found = call('LINDEX', key.i, 0)
    if found and string.sub(found, 1, #prefix) == prefix then
      call('LPOP', key.i)
    elseif found then
      found = nil
      for _, mail in ipairs(call('LRANGE', key.i, 0, -1)) do
        if string.sub(mail, 1, #prefix) == prefix then found = mail end
      end
      if found then call('LREM', key.i, 1, found) end
    end
    if not found or old(found) then see(key, message) end
  end
  for _, receipt in ipairs(beside[2]) do
    local wait = receipt[1]
    local pairs_of = {'w' .. wait, arg()}
    if receipt[2] then pairs_of[3] = 'c' .. receipt[2] pairs_of[4] = wait end
    if receipt[3] then pairs_of[#pairs_of + 1] = 'k' .. receipt[3] pairs_of[#pairs_of + 1] = wait end
    call('HSET', RECEIPTS, unpack(pairs_of))
  end
  for _, message in ipairs(beside[3]) do answer(REPLIES, message, arg()) end
  for _, wait in ipairs(beside[4]) do close_wait(key, WAITS, wait) end
  for _, wait in ipairs(beside[5]) do
    close_wait(key, WAITS, wait[1])
    call('RPUSH', key.w, arg())
    call('ZADD', WAITS, wait[2], wait[1])
  end
end

-- other turns of the tree
local other = 21
if others then
  for _, it in ipairs(others[1]) do
    local new, child = new_turn(it), keys_of_turn(other)
    other = other + 6
    if call('EXISTS', child.t) == 0 then
      local cause = turn.cancel or turn.acked
      local born = add(child, new)
      call('RPUSH', KEYS[20], new.id)
      if cause then raise_cancel(child.t, born, cause) end
      local wakes = cause and now or new.wake
      schedule(child.t, born, new.id, wakes)
      if wakes then ring_due(child.t, new.id, math.max(now, wakes)) end
    else
      place = new.last
    end
  end
  for _, it in ipairs(others[2]) do
    send(keys_of_turn(other), it[1], mail_of(it[2]))
    other = other + 3
  end
  local QUEUE = KEYS[other]
  if #others[3] > 0 then other = other + 1 end
  for _, it in ipairs(others[3]) do
    local target, cause = it[1], it[2]
    local victim = KEYS[other] == key.t and turn or read(KEYS[other])
    if victim and victim.queued then queues(QUEUE).leave(KEYS[other], victim, target) end
    if victim and victim.state ~= 'T' and (raise_cancel(KEYS[other], victim, cause) or stuck(victim, target)) then
      rouse(KEYS[other], victim, target)
      ring(KEYS[other], victim, target)
    end
    other = other + 1
  end
end

if head[22] then
  local conversation, relays, entries = unpack(head[22])
  local memory = memory_of(conversation, other)
  for _, entry in ipairs(entries) do
    local was, shown, text = memory.read(entry[1]), entry[2], arg()
    if not memory.holds(was, shown, text) then memory.write(entry[1], was, shown, text, relays) end
  end
end

-- ownership
-- One script and one slot: whoever delivers or cancels after this finds no owner and wakes the turn.
local keeps = mode == 'K' or mode == 'S' and (turn.cancel or call('EXISTS', key.i) == 1)
if keeps then
  set('lu', now + lease)
  call('ZADD', LEASES, now + lease, id)
else
  set('st', mode)
  call('HDEL', key.t, 'own', 'nd', 'lu')
  call('ZREM', LEASES, id)
  if mode == 'R' then wake = now end
  if wake and mode ~= 'T' then
    call('ZADD', WAKE, wake, id)
    ring_due(key.t, id, wake)
  end
end
call('HSET', key.t, unpack(fields))
if mode == 'T' then
  finish(key, turn, {waits = KEYS[14], over = KEYS[17], parked = KEYS[18], replies = KEYS[16], root = ROOT}, id, closing, head[14])
  if estate then estate.settle() end
end
call('SPUBLISH', NEWS, 'saved ' .. id .. ' ' .. version + 1 .. ' ' .. events_at + events)
return {'SAVED', version + 1, now, bit(keeps), keeps and call('LRANGE', key.i, 0, head[15] - 1) or {},
        keeps and turn.cancel or false, total, 0}
