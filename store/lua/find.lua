-- FIND receipts of a tree by command, by wait, or by call. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 receipts
-- ARGV: commands, waits, calls, each with its number before it
-- Replies: one body or nil for each
local out = {}
local function body(wait) out[#out + 1] = wait and call('HGET', KEYS[6], 'w' .. wait) or false end
for _, command in ipairs(args()) do body(call('HGET', KEYS[6], 'c' .. command)) end
for _, wait in ipairs(args()) do body(wait) end
for _, key in ipairs(args()) do body(call('HGET', KEYS[6], 'k' .. key)) end
return out
