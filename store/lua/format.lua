-- FORMAT of a namespace: set where it is new, raised where it is one of those that this release makes its own.
-- KEYS: 1 meta
-- ARGV: format, formats that are raised to it
-- Replies: the format
local found = redis.call('HGET', KEYS[1], 'format')
local raises = not found
for n = 2, #ARGV do raises = raises or found == ARGV[n] end
if not raises then return found end
redis.call('HSET', KEYS[1], 'format', ARGV[1])
return ARGV[1]
