-- Sets the key's remaining time if it still holds our token; never creates the key.
-- Replies 2: set; -2: no such key; -3: another token holds it. (Other numbers than release.lua's, so that
-- a reply to the one can never be taken for a reply to the other.)
local token = redis.call('GET', KEYS[1])
if token == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 2
elseif token then
  return -3
end
return -2
