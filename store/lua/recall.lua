-- RECALL entries of a conversation's memory, the newest first; looks at SCANNED places at most. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 and 7 the conversation's m o
-- ARGV: limit, only those shown ('1' or '0'), place before which to look ('' at the entry that follows), before ('' the end)
-- Replies: place before which to look on (0 or 1: there is nothing more), then entry id and entry, …
local SCANNED, CHUNK = 2048, 256
local limit, only, place, before = num(), arg() == '1', tonumber(arg()), optional()
if not place and before then place = tonumber(string.match(call('HGET', KEYS[6], 'e' .. before) or '', '^%d+')) end
local left = place and place - 1 or call('LLEN', KEYS[7])
local floor, out = left - SCANNED, {}
while left > 0 and left > floor and #out < 2 * limit do
  local first = math.max(left - CHUNK, 0)
  local names = call('LRANGE', KEYS[7], first, left - 1)
  for n = #names, 1, -1 do
    if #out == 2 * limit then break end
    left = first + n - 1
    if not only or string.sub(names[n], 1, 1) == '1' then
      local id = string.sub(names[n], 2)
      out[#out + 1] = id
      out[#out + 1] = call('HGET', KEYS[6], 'e' .. id)
    end
  end
end
return {left + 1, unpack(out)}
