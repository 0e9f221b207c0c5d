-- REMEMBER: write one entry of a conversation's memory.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 relay, 7 to 9 the conversation's m o x
-- ARGV: conversation, relays ('1' or '0'), entry id, shown ('1' or '0'), body, expected version ('' to append)
-- Replies: DONE | CONFLICT version (-1 unknown)
local memory = memory_of(arg(), 6)
local relays, id, shown, body, expected = arg() == '1', arg(), arg(), arg(), optional()
local was = memory.read(id)
if expected then
  expected = tonumber(expected)
  if not was then return {'CONFLICT', -1} end
  if was.version == expected + 1 and memory.holds(was, shown, body) then return {'DONE'} end -- its answer was lost
  if was.version ~= expected then return {'CONFLICT', was.version} end
elseif was then
  return {'DONE'}
end
memory.write(id, was, shown, body, relays)
return {'DONE'}
