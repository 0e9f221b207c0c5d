-- BEAT: announce a node, or take it off the list.
-- KEYS: 1 nodes
-- ARGV: node, what it runs ('' to leave)
-- Replies: DONE now
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. '\0' .. ARGV[2])
end
return {'DONE', now}
