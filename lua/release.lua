-- Deletes the key if it still holds our token.
-- Replies 1: deleted; 0: no such key; -1: another token holds it.
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  return redis.call('DEL', KEYS[1])
elseif token then
  return -1
end
return 0
