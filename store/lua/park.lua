-- QUARANTINE (with a token), REVIVE and DISCARD.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 parked, 7 waits, 8 open, 9 over, 10 replies,
--       11 root record, 12 to 18 the turn's t i d s h e w, 19 to 21 its parent's t i d (DISCARD with mail),
--       then for DISCARD of a root: queue, t of each turn named
-- ARGV: turn, then 'quarantine', activation, epoch, reason | 'revive'
--       | 'discard', status, retention_ms, closing, parent ('' no mail, no Mail follows), Mail,
--         then, of a root: turns, their number (see queues.lua)
-- Replies: DONE | FENCED node | GONE | NEXT turn (nothing was done: name it)
local key = keys_of_turn(12)
local id, what = arg(), arg()
local turn = read(key.t)
if what == 'quarantine' then
  local activation, epoch, reason = arg(), num(), arg()
  if not turn or not shows(turn, activation, epoch) then return {'FENCED', turn and turn.node} end
  release(key.t, id, 'S')
  park(key.t, KEYS[11], KEYS[6], id, reason)
  ring_saved(id, turn.version, turn.events)
  return {'DONE'}
end
if not turn or not turn.quarantine or turn.state == 'T' then return {'GONE'} end
if what == 'revive' then
  unpark(key.t, KEYS[11], KEYS[6], id)
  call('HDEL', key.t, 'cr')
  turn.quarantine = false
  rouse(key.t, turn, id)
  ring(key.t, turn, id)
  return {'DONE'}
end
local status, retention, closing, parent = arg(), num(), arg(), optional()
local named = {}
if KEYS[11] == key.t then
  for n = 1, tonumber(ARGV[#ARGV]) do named[n] = ARGV[#ARGV - 1 - tonumber(ARGV[#ARGV]) + n] end
end
local estate = KEYS[11] == key.t and estate_of(KEYS[8], key.t, id, named)
if estate and estate.unnamed then return {'NEXT', estate.unnamed} end
call('HSET', key.t, 'ss', status, 'upd', int(now))
index_status(id, status, turn.created)
release(key.t, id, 'T')
call('ZREM', WAKE, id)
local beside = {parked = KEYS[6], waits = KEYS[7], over = KEYS[9], replies = KEYS[10], root = KEYS[11]}
finish(key, turn, beside, id, closing, retention)
if estate then estate.settle() end
ring_saved(id, turn.version, turn.events)
if parent and call('HGET', key.t, 'pa') == parent then send(keys_of_turn(19), parent, mail_of({arg(), optional(), optional()})) end
return {'DONE'}
