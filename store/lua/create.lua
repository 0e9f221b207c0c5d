-- CREATE a root turn, and own it at once where a claim is given and fits.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 to 11 the turn's t i d s h e; with a conversation 12 open, 13 queue, then t of
--       each turn named
-- ARGV: 1 a list (msgpack): NewTurn, claim (see prelude.lua), then, unless a busy conversation refuses: 'queue', room
--       | 'supersede', cause, turns named; then the bodies of NewTurn
-- Replies: EXISTS | REUSED | BUSY turn queued | CREATED now | QUEUED now
--          | GROWN turns[] (these are open or queued, and not all of them were named: nothing was done)
--          | CLAIMED epoch version schema snapshot now mail[] cancel crashes tail[] messages events quarantined
local head, key = cmsgpack.unpack(ARGV[1]), keys_of_turn(6)
place = 1
local new, by = new_turn(head[1]), head[2]
local digest = call('HGET', key.t, 'dg')
if digest then
  if digest ~= new.digest then return {'REUSED'} end
  local turn = read(key.t)
  if by and turn.owner == by.activation then return own(key, turn, new.id, by) end
  return {'EXISTS'}
end
if new.conversation and call('HSETNX', KEYS[12], new.conversation, new.id) == 0 then
  local open, how, line = call('HGET', KEYS[12], new.conversation), head[3], queues(KEYS[13])
  if not how then return {'BUSY', open, 0} end
  if how == 'queue' then
    local count = line.count(new.conversation)
    if count >= head[4] then return {'BUSY', open, count} end
  else
    local cause, named = head[4], {}
    for n, id in ipairs(head[5]) do named[id] = KEYS[13 + n] end
    local others = line.first(new.conversation, -1)
    table.insert(others, 1, open)
    for _, id in ipairs(others) do
      if not named[id] then return {'GROWN', others} end
    end
    for _, id in ipairs(others) do
      local other = read(named[id])
      if other then line.leave(named[id], other, id) end
      if other and other.state ~= 'T' and (raise_cancel(named[id], other, cause) or stuck(other, id)) then
        rouse(named[id], other, id)
        ring(named[id], other, id)
      end
    end
  end
  add(key, new)
  line.enter(new.conversation, key.t, new.id)
  return {'QUEUED', now}
end
local turn = add(key, new)
if by and runs(by, key.t, turn) then return own(key, turn, new.id, by) end
schedule(key.t, turn, new.id, new.wake)
if new.wake then ring_due(key.t, new.id, math.max(now, new.wake)) end
return {'CREATED', now}
