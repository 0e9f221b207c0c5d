-- NOTE: replace a note on a conversation.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 the conversation's n
-- ARGV: name, expected version, body
-- Replies: DONE | CONFLICT version
local name, expected, body = arg(), num(), arg()
local version, was = string.match(call('HGET', KEYS[6], name) or '0\0', '^(%d+)%z(.*)$')
version = tonumber(version)
if version == expected + 1 and was == body then return {'DONE'} end -- its answer was lost
if version ~= expected then return {'CONFLICT', version} end
call('HSET', KEYS[6], name, int(version + 1) .. NUL .. body)
return {'DONE'}
