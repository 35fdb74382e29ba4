-- Raises the counter to what is proposed, where the key still holds our token and the server is the one that counted it.
-- Replies "count COUNT ID" or "gone ID", ID being the start of our token. Only a count that is exactly what was
-- proposed makes the proposal a fencing token: a higher one was counted for somebody else.
--
-- A server that was restarted since may have gone back to a time before somebody else was counted and confirmed, and
-- would confirm the same number again.
local id = string.sub(ARGV[1], 1, 8)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 'gone ' .. id
end
local counter = redis.call('HMGET', KEYS[2], 'count', 'run')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
if counter[2] ~= run then
  return 'gone ' .. id
end
local count = counter[1]
if not tonumber(count or '') then
  return redis.error_reply('FENCING the counter of this lock is no number that can go up')
end
if tonumber(count) < tonumber(ARGV[2]) then
  count = ARGV[2]
  redis.call('HSET', KEYS[2], 'count', count)
end
return 'count ' .. count .. ' ' .. id
