-- ABANDON: give a turn back without saving, runnable after a delay.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 the turn's t
-- ARGV: turn, activation, epoch, delay_ms
-- Replies: DONE | FENCED node
local id, activation, epoch, delay = arg(), arg(), num(), num()
local turn = read(KEYS[6])
if not turn or not shows(turn, activation, epoch) then return {'FENCED', turn and turn.node} end
release(KEYS[6], id, 'R')
call('ZADD', WAKE, int(now + delay), id)
ring_due(KEYS[6], id, now + delay)
return {'DONE'}
