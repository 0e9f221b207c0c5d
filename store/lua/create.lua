-- CREATE a root turn, and own it at once where a claim is given and fits.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 open, 7 to 12 the turn's t i d s h e
-- ARGV: NewTurn, ClaimBy (see prelude.lua)
-- Replies: EXISTS | REUSED | BUSY turn | CREATED now
--          | CLAIMED epoch version schema snapshot now mail[] cancel crashes tail[] messages events quarantined
local key, new, by = keys_of_turn(7), new_turn(), claim_by()
local digest = call('HGET', key.t, 'dg')
if digest then
  if digest ~= new.dg then return {'REUSED'} end
  local turn = read(key.t)
  if by and turn.owner == by.activation then return own(key, turn, new.id, by) end
  return {'EXISTS'}
end
if new.cv ~= '' and call('HSETNX', KEYS[6], new.cv, new.id) == 0 then return {'BUSY', call('HGET', KEYS[6], new.cv)} end
local turn = add(key, new)
if by and runs(by, key.t, turn) then return own(key, turn, new.id, by) end
schedule(key.t, turn, new.id, new.wake)
if new.wake then ring_due(key.t, new.id, math.max(now, new.wake)) end
return {'CREATED', now}
