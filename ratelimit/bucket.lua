-- One call charges, settles or abandons all buckets of a request, all or nothing. It is the
-- arithmetic of bucket.py: whole numbers below 2^53, kept as text, so that no digit is lost.
--
-- KEYS[1]  sorted set of the tenant's reservations, scored by the microsecond at which they lapse
-- KEYS[2]  hash of the tenant's reservations: id -> "key amount key amount ..." or "done"
-- KEYS[3+] the buckets: "level at" (units, microseconds)
-- ARGV[1]  "r": reserve, "s": settle; abandoning is settling for 0
-- ARGV[2]  reservation id: the same id is charged once and settled once, whatever is repeated
-- ARGV[3]  lease in microseconds: without a settle the charge is given back after it
-- ARGV[4]  microseconds now, for tests; 0: the server's clock
-- ARGV[5+] for each bucket: capacity (units), tokens per minute, amount reserved or used (units)
-- Returns  1 granted or 0 refused (then nothing was charged), and each bucket's level.

local MAX_FILL = 604800000000
local MAX_DEBT = -4500000000000000
local DONE_US = 10000000 -- how long a settled id is remembered
local SLACK_MS = 10000
local KEEP_MS = 60000 -- the tenant's reservations live on so much longer, to extend them rarely
local LAPSES = 32 -- lapsed reservations given back per call

local id, lease, now = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function text(number)
  return string.format('%.0f', number)
end

local function fill(missing, per_minute)
  if missing <= 0 then return 0 end
  local whole = math.floor(missing / per_minute)
  local rest = missing - whole * per_minute
  return math.min(MAX_FILL, whole * 60 + math.ceil(rest * 60 / per_minute))
end

local function refill(key, capacity, per_minute)
  local stored = redis.call('GET', key)
  if not stored then return capacity, now end
  local level, at = string.match(stored, '^(%S+) (%S+)$')
  level, at = tonumber(level), tonumber(at)
  at = math.min(at, now + fill(capacity, per_minute))
  local elapsed = now - at
  if elapsed <= 0 then return math.min(capacity, level), at end
  if elapsed >= fill(capacity - level, per_minute) then return capacity, now end
  local whole = math.floor(elapsed / 60)
  local rest = elapsed - whole * 60
  local gained = whole * per_minute + math.floor(rest * per_minute / 60)
  return math.min(capacity, level + gained), now
end

local function amounts(record)
  local found = {}
  for key, amount in string.gmatch(record or '', '(%S+) (%d+)') do
    found[key] = amount
  end
  return found
end

-- Give back what lapsed. A bucket that is gone is full; one that overflows is cut when refilled.
for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, LAPSES)) do
  for key, amount in pairs(amounts(redis.call('HGET', KEYS[2], lapsed))) do
    local level, at = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)$')
    if level then
      redis.call('SET', key, text(tonumber(level) + tonumber(amount)) .. ' ' .. at, 'KEEPTTL')
    end
  end
  redis.call('HDEL', KEYS[2], lapsed)
  redis.call('ZREM', KEYS[1], lapsed)
end

local count = #KEYS - 2
local levels, ats, capacities, rates, asked = {}, {}, {}, {}, {}
local granted = 1
for i = 1, count do
  capacities[i] = tonumber(ARGV[2 + 3 * i])
  rates[i] = tonumber(ARGV[3 + 3 * i])
  asked[i] = tonumber(ARGV[4 + 3 * i])
  levels[i], ats[i] = refill(KEYS[2 + i], capacities[i], rates[i])
  if levels[i] < asked[i] then granted = 0 end
end

local record = redis.call('HGET', KEYS[2], id)
local keep_us = DONE_US
if ARGV[1] == 'r' then
  if record or granted == 0 then
    if record then granted = 1 end
    return {granted, unpack(levels)}
  end
  local parts = {}
  for i = 1, count do
    levels[i] = levels[i] - asked[i]
    parts[i] = KEYS[2 + i] .. ' ' .. text(asked[i])
  end
  record, keep_us = table.concat(parts, ' '), lease
else
  granted = 1
  if record == 'done' then return {granted, unpack(levels)} end
  local reserved = amounts(record)
  for i = 1, count do
    local difference = tonumber(reserved[KEYS[2 + i]] or 0) - asked[i]
    levels[i] = math.max(math.min(capacities[i], levels[i] + difference), MAX_DEBT)
  end
  record = 'done'
end

local longest_us = 0
for i = 1, count do
  local full_us = fill(capacities[i] - levels[i], rates[i]) + math.max(0, ats[i] - now)
  local full_ms = math.ceil(full_us / 1000) + SLACK_MS
  redis.call('SET', KEYS[2 + i], string.format('%.0f %.0f', levels[i], ats[i]), 'PX', text(full_ms))
  longest_us = math.max(longest_us, full_us)
end
redis.call('HSET', KEYS[2], id, record)
redis.call('ZADD', KEYS[1], text(now + keep_us), id)
-- After lease and filling no reservation can matter: whatever it held has flowed in again.
local keep_ms = math.ceil((keep_us + longest_us) / 1000) + SLACK_MS
if redis.call('PTTL', KEYS[1]) < keep_ms then
  redis.call('PEXPIRE', KEYS[1], text(keep_ms + KEEP_MS))
  redis.call('PEXPIRE', KEYS[2], text(keep_ms + KEEP_MS))
end
return {granted, unpack(levels)}
