-- Takes the lock if it is free, as SET NX PX does, and counts that: the counter beside it only ever goes up.
-- Replies "set COUNT ID" or "taken ID", ID being the start of our token.
--
-- A counter belongs to one run of the server. A server that was restarted may have lost the last that it counted,
-- so there (and where there is no counter, or another server's) it goes on from the clock, in microseconds, which
-- is above whatever was counted before. All that can fail comes before the first write: a script is not rolled back.
local id = string.sub(ARGV[1], 1, 8)
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 'taken ' .. id
end
local counter = redis.call('HMGET', KEYS[2], 'count', 'run')
local count = tonumber(counter[1] or 0)
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
if count and (run == '' or counter[2] ~= run) then
  local time = redis.call('TIME')
  count = math.max(count, time[1] * 1000000 + time[2])
end
-- Beyond 2^53 Lua's numbers skip some.
if not count or count < 0 or count >= 9007199254740991 then
  return redis.error_reply('FENCING the counter of this lock is no number that can go up')
end
count = string.format('%.0f', count + 1)
redis.call('HSET', KEYS[2], 'count', count, 'run', run)
-- A week: long beside any lock, and one that comes later goes on from the clock.
redis.call('PEXPIRE', KEYS[2], 604800000)
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return 'set ' .. count .. ' ' .. id
