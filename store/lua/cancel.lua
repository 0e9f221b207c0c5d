-- CANCEL: raise a turn's flag; the first cause wins. A quarantined turn is woken by it, also by a repetition; a
-- queued one leaves the queue.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 queue, 7 to 11 the turn's t i d s h
-- ARGV: 1 a list (msgpack): turn, cause, claim (see prelude.lua)
-- Replies: GONE | CLOSED status | DELIVERED now node fresh quarantined | CLAIMED … (see create.lua)
local key = keys_of_turn(7)
local id, cause, by = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
local turn = read(key.t)
if not turn then return {'GONE'} end
if turn.state == 'T' then return {'CLOSED', turn.status} end
if turn.queued then queues(KEYS[6]).leave(key.t, turn, id) end
local fresh = raise_cancel(key.t, turn, cause)
return rouse_or_own(key, turn, id, by, fresh or stuck(turn, id), fresh)
