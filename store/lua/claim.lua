-- CLAIM a turn that may run.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 to 10 the turn's t i d s h
-- ARGV: 1 a list (msgpack): turn, claim (see prelude.lua)
-- Replies: GONE | HELD node | NOT_DUE wake | TOO_NEW schema | UNKNOWN agent version | CLAIMED … (see create.lua)
local key = keys_of_turn(6)
local id, by = unpack(cmsgpack.unpack(ARGV[1]))
local turn = read(key.t)
if not turn or turn.state == 'T' then
  call('ZREM', WAKE, id)
  return {'GONE'}
end
if turn.owner then
  if turn.owner == by.activation then return own(key, turn, id, by) end
  call('ZADD', LEASES, 'NX', int(turn.lease), id)
  call('ZREM', WAKE, id)
  return {'HELD', turn.node} -- never steal, also when the lease is over: take-over is REAP, then CLAIM
end
if parked(turn) then return {'GONE'} end
local ready, wake = due(id)
if not ready then return {'NOT_DUE', wake} end
if turn.schema > by.schema then return {'TOO_NEW', turn.schema} end
if not runs(by, key.t, turn) then return {'UNKNOWN', unpack(call('HMGET', key.t, 'ag', 'av'))} end
return own(key, turn, id, by)
