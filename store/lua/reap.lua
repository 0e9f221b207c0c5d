-- REAP: take a turn from an owner whose lease ended `grace_ms` ago, or whose node is proved dead.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 parked, 7 root record, 8 the turn's t
-- ARGV: turn, grace_ms, dead_node, back_off_ms, max_crashes
-- Replies: GONE | HELD node | REAPED crashes quarantined
local id, grace, dead, back_off, most = arg(), num(), arg(), num(), num()
local turn = read(KEYS[8])
if not turn or not turn.owner then
  call('ZREM', LEASES, id)
  return {'GONE'}
end
if turn.lease + grace > now and (dead == '' or turn.node ~= dead) then
  call('ZADD', LEASES, int(turn.lease), id)
  return {'HELD', turn.node}
end
turn.crashes = turn.crashes + 1
call('HSET', KEYS[8], 'cr', int(turn.crashes))
if turn.crashes > most and not turn.quarantine then
  turn.quarantine = int(turn.crashes) .. ' owners were lost'
  park(KEYS[8], KEYS[7], KEYS[6], id, turn.quarantine)
end
if parked(turn) then
  release(KEYS[8], id, 'S')
else
  release(KEYS[8], id, 'R')
  local wait = turn.crashes < 2 and 0 or math.min(back_off * 2 ^ math.min(turn.crashes - 2, 20), 60000)
  call('ZADD', WAKE, int(now + wait), id)
  ring_due(KEYS[8], id, now + wait)
end
if turn.quarantine then ring_saved(id, turn.version, turn.events) end
return {'REAPED', turn.crashes, bit(turn.quarantine)}
