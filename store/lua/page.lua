-- PAGE of an index of a partition: the members behind a cursor, by number, then by name. Changes nothing.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 the index
-- ARGV: limit, number ('' from the start), name, then the codes whose ranges are merged (0: the score is the number)
-- Replies: number name, number name, …
local limit, number, name = num(), optional(), arg()

-- By bytes, as the index is ordered; Lua's own comparison follows the locale of the server.
local function less(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local found = {}
for n = 4, #ARGV do
  local base = tonumber(ARGV[n]) * 1e13
  local skip, wanted = 0, limit
  while wanted > 0 do
    local rows = call('ZRANGE', KEYS[6], int(base + tonumber(number or 0)), '(' .. int(base + 1e13), 'BYSCORE', 'LIMIT', skip,
                      wanted, 'WITHSCORES')
    for m = 1, #rows, 2 do
      local at = rows[m + 1] - base
      if not number or at > tonumber(number) or less(name, rows[m]) then
        found[#found + 1] = {at, rows[m]}
        wanted = wanted - 1
      end
    end
    if #rows == 0 then break end
    skip = skip + #rows / 2
  end
end
table.sort(found, function(a, b) return a[1] < b[1] or a[1] == b[1] and less(a[2], b[2]) end)
local out = {}
for n = 1, math.min(limit, #found) do
  out[#out + 1] = int(found[n][1])
  out[#out + 1] = found[n][2]
end
return out
