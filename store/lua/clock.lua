-- The store's time in milliseconds: the server's, read once per script. The loader puts this before prelude.lua; a test
-- that needs virtual time puts lines of its own here, which read `now` from the last of KEYS.
local server_time = redis.call('TIME')
local now = server_time[1] * 1000 + math.floor(server_time[2] / 1000)
