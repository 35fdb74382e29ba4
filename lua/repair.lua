-- Puts a held lock back on a node that lost it, with its counter at the lock's fencing token, if it has one, or above.
-- Replies 4: it is there; -4: another token is.
local token = redis.call('GET', KEYS[1])
if token and token ~= ARGV[1] then
  return -4
end
if KEYS[2] then
  local count = redis.call('HGET', KEYS[2], 'count') or '0'
  if not tonumber(count) then
    return redis.error_reply('FENCING the counter of this lock is no number that can go up')
  end
  if tonumber(count) < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[2], 'count', ARGV[3])
    redis.call('PEXPIRE', KEYS[2], 604800000)
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 4
