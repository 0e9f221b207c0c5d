-- FORMAT of a namespace: set where it is new.
-- KEYS: 1 meta
-- ARGV: format
-- Replies: the format
local found = redis.call('HGET', KEYS[1], 'format')
if found then return found end
redis.call('HSET', KEYS[1], 'format', ARGV[1])
return ARGV[1]
