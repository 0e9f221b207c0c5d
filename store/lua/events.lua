-- EVENTS behind a number, in batches. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 the turn's t, 7 its e
-- ARGV: after, limit
-- Replies: last number, state, then batches (see prelude.lua)
local after, limit = num(), num()
local turn = call('HMGET', KEYS[6], 'ev', 'st')
local out = {turn[1], turn[2]}
-- Every batch holds a number at least, so the one wanted stands at or before place `after`; batches are in order.
local low, high = 0, math.min(after, call('LLEN', KEYS[7]))
while low < high do
  local middle = math.floor((low + high) / 2)
  local first, count = string.match(call('LINDEX', KEYS[7], middle), '^(%d+)%z(%d+)')
  if first + count - 1 > after then high = middle else low = middle + 1 end
end
for _, batch in ipairs(call('LRANGE', KEYS[7], low, low + limit - 1)) do out[#out + 1] = batch end
return out
