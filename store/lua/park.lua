-- QUARANTINE (with a token), REVIVE and DISCARD.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 parked, 6 waits, 7 open, 8 over, 9 replies, 10 root record,
--       11 to 17 the turn's t i d s h e w, 18 to 20 its parent's t i d (DISCARD with mail)
-- ARGV: turn, then 'quarantine', activation, epoch, reason | 'revive'
--       | 'discard', status, retention_ms, closing, parent ('' no mail, nothing follows), Mail
-- Replies: DONE | FENCED node | GONE
local key = keys_of_turn(11)
local id, what = arg(), arg()
local turn = read(key.t)
if what == 'quarantine' then
  local activation, epoch, reason = arg(), num(), arg()
  if not turn or not shows(turn, activation, epoch) then return {'FENCED', turn and turn.node} end
  release(key.t, id, 'S')
  call('HSET', key.t, 'q', reason, 'qa', int(now))
  call('ZADD', KEYS[5], int(now), id)
  return {'DONE'}
end
if not turn or not turn.quarantine or turn.state == 'T' then return {'GONE'} end
if what == 'revive' then
  call('HDEL', key.t, 'q', 'qa', 'cr')
  call('ZREM', KEYS[5], id)
  turn.quarantine = false
  rouse(key.t, turn, id)
  ring_work(id)
  return {'DONE'}
end
local status, retention, closing, parent = arg(), num(), arg(), optional()
call('HSET', key.t, 'ss', status, 'upd', int(now))
index_status(id, status, turn.created)
release(key.t, id, 'T')
call('ZREM', WAKE, id)
local beside = {parked = KEYS[5], waits = KEYS[6], open = KEYS[7], over = KEYS[8], replies = KEYS[9], root = KEYS[10]}
finish(key, turn, beside, id, closing, retention)
if parent and call('HGET', key.t, 'pa') == parent then send(keys_of_turn(18), parent, mail_of()) end
return {'DONE'}
