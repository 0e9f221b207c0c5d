-- DROP: delete a tree whose retention is over and in which no turn is live (part of Prune).
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 over, 7 parked, 8 receipts, 9 replies, 10 children,
--       then t i d s h e w of the root and of each child
-- ARGV: later_ms (when to look again), then the root and the children
-- Replies: DROPPED | LATER | GROWN (the children named are not all) | GONE
local later = num()
local root = ARGV[2]
local expires = call('ZSCORE', KEYS[6], root)
if not expires or tonumber(expires) > now then return {'GONE'} end
if call('LLEN', KEYS[10]) ~= #ARGV - 2 then return {'GROWN'} end
for n = 2, #ARGV do
  local state = call('HGET', KEYS[11 + (n - 2) * 7], 'st')
  if state and state ~= 'T' then
    call('ZADD', KEYS[6], int(now + later), root)
    return {'LATER'}
  end
end
for n = 2, #ARGV do
  call('ZREM', TURNS, ARGV[n])
  call('ZREM', KEYS[7], ARGV[n])
end
for n = 8, 10 + (#ARGV - 1) * 7 do call('UNLINK', KEYS[n]) end
call('ZREM', KEYS[6], root)
return {'DROPPED'}
