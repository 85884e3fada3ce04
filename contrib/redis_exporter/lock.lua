#!lua flags=no-writes,allow-stale
-- For redis_exporter --script: every number of `INFO lock`, so that each becomes redis_script_values{key="<field>"}.
-- Names no field: what a later version of the module counts appears by itself. A server without the module gives
-- nothing. The server refuses every write in here, because of the first line.
local values = {}
for name, number in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):(%d+)\r\n') do
  -- Both as text, as redis_exporter wants it: a number of Lua would lose the last digits of a fence.
  values[#values + 1] = name
  values[#values + 1] = number
end
return values
