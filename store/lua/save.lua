-- SAVE: commit one transition of a turn, with all that it does beside the turn.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 waits, 7 open, 8 over, 9 parked, 10 receipts, 11 replies,
--       12 children, 13 root record, 14 to 20 the turn's t i d s h e w, then t i d s h e of each child, t i d of each turn to
--       deliver to; then, with cancels, queue and t of each turn to cancel; with memory relay and the conversation's m o x;
--       at the end of a root queue and t of each turn named
-- ARGV: turn, activation, epoch, version, save_id, mode (K S R T), lease_ms, wake, schema, status, snapshot,
--       progress, ack_cancel ('1' or '0'), usage ('in,out,total,calls'), closing, retention_ms, batch, messages_at,
--       events_at; then, each with its number before it: messages; events (one body); consumed message ids;
--       receipts (wait, command, call, body); replies (message id, body); closed waits; opened waits (id, created, row);
--       children (NewTurn); deliveries (turn, Mail); cancels (turn, cause); then, where there is any, memory
--       (conversation, relays ('1' or '0'), number of entries, of each its id, shown, body); at the end of a root turns and
--       their number (see queues.lua)
-- Replies: FENCED node | BEHIND version messages events | CONFLICT version | NEXT turn (nothing was done: name it)
--          | SAVED version now owned mail[] cancel usage replayed
local key = keys_of_turn(14)
local id, activation, epoch, version, save_id, mode = arg(), arg(), num(), num(), arg(), arg()
local lease, wake, schema, status, snapshot = num(), optional(), arg(), arg(), arg()
local progress, acks, usage, closing, retention, batch = arg() == '1', arg() == '1', arg(), arg(), num(), num()
local messages_at, events_at = num(), num()
local RECEIPTS, REPLIES, ROOT = KEYS[10], KEYS[11], KEYS[13]
local turn, total = read(key.t), call('HGET', ROOT, 'su') or '0,0,0,0'

local function saved(at, owned, replayed)
  return {'SAVED', at, now, bit(owned), owned and call('LRANGE', key.i, 0, batch - 1) or {},
          owned and turn.cancel or false, total, bit(replayed)}
end

if not turn then return {'FENCED', false} end
if turn.save_id == save_id then
  call('HSET', key.t, 'sid', save_id) -- changes nothing, but gives a WAIT on this connection something to wait for
  return saved(turn.version, shows(turn, activation, epoch), true)
end
if not shows(turn, activation, epoch) then return {'FENCED', turn.node} end
local length = call('LLEN', key.h)
if turn.version < version or length < messages_at or turn.events < events_at then
  return {'BEHIND', turn.version, length, turn.events}
end
if turn.version > version or length > messages_at or turn.events > events_at then return {'CONFLICT', turn.version} end

local estate = mode == 'T' and ROOT == key.t and estate_of(KEYS[7], key.t, id)
if estate and estate.unnamed then return {'NEXT', estate.unnamed} end

-- state, history, events
push(key.h, args())
local events, body = num(), arg()
if events > 0 then
  call('RPUSH', key.e, int(events_at + 1) .. NUL .. int(events) .. NUL .. int(epoch) .. NUL .. body)
end
call('SET', key.s, snapshot)
local fields = {'v', int(version + 1), 'sid', save_id, 'upd', int(now)}
local function set(name, value) fields[#fields + 1] = name fields[#fields + 1] = value end
if tonumber(schema) ~= turn.schema then set('sc', schema) end
if events > 0 then set('ev', int(events_at + events)) end
if status ~= turn.status then
  set('ss', status)
  index_status(id, status, turn.created)
end
if progress and turn.crashes > 0 then call('HDEL', key.t, 'cr') end
if acks and turn.cancel then
  set('ca', turn.cancel)
  call('HDEL', key.t, 'cx')
  turn.acked, turn.cancel = turn.cancel, false
end
if turn.usage ~= usage then
  local function numbers(text) return {string.match(text, '(%d+),(%d+),(%d+),(%d+)')} end
  local sum, was, is = numbers(total), numbers(turn.usage), numbers(usage)
  for n = 1, 4 do sum[n] = int(sum[n] - was[n] + is[n]) end
  total = table.concat(sum, ',')
  set('us', usage)
  if ROOT == key.t then set('su', total) else call('HSET', ROOT, 'su', total) end
end

if ROOT ~= key.t then call('HINCRBY', ROOT, 'tv', 1) end

-- By exact id, never by position: after a failover the head may be mail that this owner has not seen. It may also have
-- forgotten mail that this owner has consumed: its id must count as seen when the sender repeats it.
for _, message in ipairs(args()) do
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

-- receipts, replies, waits
for _ = 1, num() do
  local wait, command, call_key, receipt = arg(), arg(), arg(), arg()
  local pairs_of = {'w' .. wait, receipt}
  if command ~= '' then pairs_of[3] = 'c' .. command pairs_of[4] = wait end
  if call_key ~= '' then pairs_of[#pairs_of + 1] = 'k' .. call_key pairs_of[#pairs_of + 1] = wait end
  call('HSET', RECEIPTS, unpack(pairs_of))
end
for _ = 1, num() do
  local message = arg()
  answer(REPLIES, message, arg())
end
for _, wait in ipairs(args()) do close_wait(key, KEYS[6], wait) end
for _ = 1, num() do
  local wait, created, row = arg(), arg(), arg()
  close_wait(key, KEYS[6], wait)
  call('RPUSH', key.w, wait .. NUL .. row)
  call('ZADD', KEYS[6], created, wait)
end

-- other turns of the tree
local other = 21
for _ = 1, num() do
  local new, child = new_turn(), keys_of_turn(other)
  other = other + 6
  if call('EXISTS', child.t) == 0 then
    local cause = turn.cancel or turn.acked
    local born = add(child, new)
    call('RPUSH', KEYS[12], new.id)
    if cause then raise_cancel(child.t, born, cause) end
    local wakes = cause and now or new.wake
    schedule(child.t, born, new.id, wakes)
    if wakes then ring_due(child.t, new.id, math.max(now, wakes)) end
  end
end
for _ = 1, num() do
  local target, mail = arg(), mail_of()
  send(keys_of_turn(other), target, mail)
  other = other + 3
end
local cancels, QUEUE = num(), KEYS[other]
if cancels > 0 then other = other + 1 end
for _ = 1, cancels do
  local target, cause = arg(), arg()
  local it = KEYS[other] == key.t and turn or read(KEYS[other])
  if it and it.queued then queues(QUEUE).leave(KEYS[other], it, target) end
  if it and it.state ~= 'T' and (raise_cancel(KEYS[other], it, cause) or stuck(it, target)) then
    rouse(KEYS[other], it, target)
    ring(KEYS[other], it, target)
  end
  other = other + 1
end

-- memory
if place < #ARGV - (mode == 'T' and ROOT == key.t and ARGV[#ARGV] + 1 or 0) then
  local memory, relays = memory_of(arg(), other), arg() == '1'
  for _ = 1, num() do
    local entry, shown, text = arg(), arg(), arg()
    local was = memory.read(entry)
    if not memory.holds(was, shown, text) then memory.write(entry, was, shown, text, relays) end
  end
end

-- ownership
-- One script and one slot: whoever delivers or cancels after this finds no owner and wakes the turn.
local keeps = mode == 'K' or mode == 'S' and (turn.cancel or call('EXISTS', key.i) == 1)
if keeps then
  set('lu', int(now + lease))
  call('ZADD', LEASES, int(now + lease), id)
else
  set('st', mode)
  set('own', '')
  set('nd', '')
  call('ZREM', LEASES, id)
  if mode == 'R' then wake = int(now) end
  if wake and mode ~= 'T' then
    call('ZADD', WAKE, wake, id)
    ring_due(key.t, id, wake)
  end
end
call('HSET', key.t, unpack(fields))
if mode == 'T' then
  local beside = {waits = KEYS[6], over = KEYS[8], parked = KEYS[9], replies = REPLIES, root = ROOT}
  finish(key, turn, beside, id, closing, retention)
  if estate then estate.settle() end
end
ring_saved(id, version + 1, events_at + events)
return saved(version + 1, keeps, false)
