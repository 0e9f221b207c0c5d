-- DELIVER mail to a turn, and own it at once where it has no owner and a claim is given and fits.
-- KEYS: 1 wake, 2 leases, 3 turns, 4 bell, 5 news, 6 to 10 the turn's t i d s h, 11 receipts, 12 replies
-- ARGV: 1 a list (msgpack): turn, cap, runtime, Mail, claim (see prelude.lua); then the mail's body
-- Replies: KNOWN 'command' body | GONE | KNOWN 'wait' body | REPLIED body | CLOSED status | FULL count
--          | DELIVERED now node fresh quarantined | CLAIMED … (see create.lua)
local head, key = cmsgpack.unpack(ARGV[1]), keys_of_turn(6)
place = 1
local id, by, mail = head[1], head[5], mail_of(head[4])
if mail.command then
  local wait = call('HGET', KEYS[11], 'c' .. mail.command)
  if wait then return {'KNOWN', 'command', call('HGET', KEYS[11], 'w' .. wait)} end
end
local turn = read(key.t)
if not turn then return {'GONE'} end
if mail.wait then
  local receipt = call('HGET', KEYS[11], 'w' .. mail.wait)
  if receipt then return {'KNOWN', 'wait', receipt} end
end
local reply = answered(KEYS[12], mail.id)
if reply then return {'REPLIED', reply} end
local fresh = not seen(key, mail.id)
if fresh then
  if turn.state == 'T' then return {'CLOSED', turn.status} end
  local unread = call('LLEN', key.i)
  if unread >= head[2] and not (head[3] and not mail.command) then return {'FULL', unread} end
  post(key, mail)
end
return rouse_or_own(key, turn, id, by, fresh, fresh)
