-- FORGET: drop a conversation's memory, notes and relay.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 relay, 7 to 10 the conversation's m o x n
-- ARGV: conversation
-- Replies: DONE
call('ZREM', KEYS[6], arg())
for n = 7, 10 do call('UNLINK', KEYS[n]) end
return {'DONE'}
