-- LOOK: one turn with its snapshot, and of each turn that may be below it what says how far it is. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 children of the root, 7 to 10 the turn's t s h w, then t w of each child
-- ARGV: turn, then the children of the root, as the caller knows them
-- Replies: GONE | GROWN children[] (those named are not all) | LOOKED now wake snapshot messages waits[] field value …
--          where the last is one list, then for each child a list: parent state wake waits[]
local id = arg()
local fields = call('HGETALL', KEYS[7])
if #fields == 0 then return {'GONE'} end
if call('LLEN', KEYS[6]) ~= #ARGV - 1 then return {'GROWN', call('LRANGE', KEYS[6], 0, -1)} end
local out = {'LOOKED', now, call('ZSCORE', WAKE, id), call('GET', KEYS[8]), call('LLEN', KEYS[9]), call('LRANGE', KEYS[10], 0, -1),
             fields}
for n = 2, #ARGV do
  local first = 11 + (n - 2) * 2
  local child = call('HMGET', KEYS[first], 'pa', 'st')
  out[#out + 1] = {child[1], child[2], call('ZSCORE', WAKE, ARGV[n]), call('LRANGE', KEYS[first + 1], 0, -1)}
end
return out
