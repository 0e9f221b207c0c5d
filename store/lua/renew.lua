-- RENEW leases of turns of one partition.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, then t i of each turn
-- ARGV: lease_ms, then turn, activation, epoch of each
-- Replies: now, then one flag a turn: 0 lost; else 1, +1 there is mail, +2 there is a cancel
local lease, out = int(now + num()), {now}
for n = 6, 5 + (#ARGV - 1) / 3 * 2, 2 do
  local id, activation, epoch = arg(), arg(), arg()
  local v = call('HMGET', KEYS[n], 'own', 'ep', 'cx')
  if v[1] == activation and v[2] == epoch then
    call('HSET', KEYS[n], 'lu', lease)
    call('ZADD', LEASES, lease, id)
    out[#out + 1] = 1 + call('EXISTS', KEYS[n + 1]) + (v[3] and 2 or 0)
  else
    out[#out + 1] = 0
  end
end
return out
