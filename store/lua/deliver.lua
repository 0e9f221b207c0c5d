-- DELIVER mail to a turn, and own it at once where it has no owner and a claim is given and fits.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 receipts, 7 replies, 8 to 12 the turn's t i d s h
-- ARGV: turn, cap, runtime ('1' or '0'), Mail, ClaimBy (see prelude.lua)
-- Replies: KNOWN 'command' body | GONE | KNOWN 'wait' body | REPLIED body | CLOSED status | FULL count
--          | DELIVERED now node fresh quarantined | CLAIMED … (see create.lua)
local key = keys_of_turn(8)
local id, cap, runtime, mail, by = arg(), num(), arg() == '1', mail_of(), claim_by()
if mail.command ~= '' then
  local wait = call('HGET', KEYS[6], 'c' .. mail.command)
  if wait then return {'KNOWN', 'command', call('HGET', KEYS[6], 'w' .. wait)} end
end
local turn = read(key.t)
if not turn then return {'GONE'} end
if mail.wait ~= '' then
  local receipt = call('HGET', KEYS[6], 'w' .. mail.wait)
  if receipt then return {'KNOWN', 'wait', receipt} end
end
local reply = answered(KEYS[7], mail.id)
if reply then return {'REPLIED', reply} end
local fresh = not seen(key, mail.id)
if fresh then
  if turn.state == 'T' then return {'CLOSED', turn.status} end
  local unread = call('LLEN', key.i)
  if unread >= cap and not (runtime and mail.command == '') then return {'FULL', unread} end
  post(key, mail)
end
return rouse_or_own(key, turn, id, by, fresh, fresh)
