-- RELAYED: everything up to a change has been passed on.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 relay, 7 the conversation's x
-- ARGV: conversation, change
-- Replies: DONE
local conversation, change = arg(), arg()
if call('ZREMRANGEBYSCORE', KEYS[7], '-inf', change) == 0 then return {'DONE'} end
if call('EXISTS', KEYS[7]) == 1 then
  call('ZADD', KEYS[6], int(now), conversation)
else
  call('ZREM', KEYS[6], conversation)
end
return {'DONE'}
