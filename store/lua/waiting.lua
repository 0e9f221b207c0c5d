-- WAITING: entries of a conversation that wait to be passed on, the oldest change first. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 and 7 the conversation's m x
-- ARGV: limit
-- Replies: number of those that wait, then entry id and entry, …
local out = {call('ZCARD', KEYS[7])}
for _, id in ipairs(call('ZRANGE', KEYS[7], 0, num() - 1)) do
  out[#out + 1] = id
  out[#out + 1] = call('HGET', KEYS[6], 'e' .. id)
end
return out
