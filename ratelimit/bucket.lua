-- One call reserves in, charges or settles all buckets of a request, all or nothing. It is the
-- arithmetic of bucket.py: whole numbers below 2^53, kept as text, so that no digit is lost.
--
-- KEYS[1]  sorted set of reservations, scored by the microsecond at which they lapse
-- KEYS[2]  hash of reservations: id -> "key reserved used key reserved used ..." or "done"
--          (with a ~ in front once it has lapsed)
-- KEYS[3+] the buckets. Of tokens: "level at" (units, microseconds). Of concurrent streams: a
--          sorted set of reservations, scored as KEYS[1].
-- ARGV[1]  "r": reserve; "c": so much is used so far, and the lease goes on; "s": settle, abandoning
--          is settling for 0; "l": look
-- ARGV[2]  reservation id: the same id is charged once and settled once, whatever is repeated
-- ARGV[3]  lease in microseconds: without a sign of life what is not used is given back after it
-- ARGV[4]  microseconds now, for tests; 0: the server's clock
-- ARGV[5]  a letter for each bucket: t for tokens, c for concurrent; capital: refuses nothing
-- ARGV[6+] for each bucket: capacity (units), tokens per window, seconds of the window; then what
--          each must hold (only looked at when reserving); then amounts. Reserving: what to charge
--          if the bucket holds so much, otherwise all that it holds. Else: what has been used.
-- Returns  0 refused (nothing was charged), or 1 + 2 * a bit for each bucket with a capital letter
--          that would have refused (it was not charged); and each bucket's level.

local MAX_FILL = 604800000000
local MAX_DEBT = -4500000000000000
local UNITS = 1000000
local DONE_US = 30000000 -- how long a settled id is remembered
local MARK_US = 600000000 -- how long a lapsed one is, if it had used anything
local SLACK_MS = 10000
local KEEP_MS = 60000 -- the reservations live on so much longer, to extend them rarely
local LAPSES = 32 -- lapsed reservations given back per call

local op, id, lease, now, letters = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function text(number)
  return string.format('%.0f', number)
end

local function fill(missing, tokens, window)
  if missing <= 0 then return 0 end
  local whole = math.floor(missing / tokens)
  local rest = missing - whole * tokens
  return math.min(MAX_FILL, whole * window + math.ceil(rest * window / tokens))
end

local function refill(key, capacity, tokens, window)
  local stored = redis.call('GET', key)
  if not stored then return capacity, now end
  local level, at = string.match(stored, '^(%S+) (%S+)$')
  level, at = tonumber(level), tonumber(at)
  at = math.min(at, now + fill(capacity, tokens, window))
  local elapsed = now - at
  if elapsed <= 0 then return math.min(capacity, level), at end
  if elapsed >= fill(capacity - level, tokens, window) then return capacity, now end
  local whole = math.floor(elapsed / window)
  local rest = elapsed - whole * window
  local gained = whole * tokens + math.floor(rest * tokens / window)
  return math.min(capacity, level + gained), now
end

-- Give back what lapsed. A bucket that is gone is full; one that overflows is cut when refilled.
-- What had been used stays charged, and a mark (~) says so to a stream that lives on all the same.
local lapsed = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, LAPSES)
for _, each in ipairs(lapsed) do
  local record, kept = redis.call('HGET', KEYS[2], each) or '', {}
  if string.byte(record) ~= 126 then
    for key, reserved, used in string.gmatch(record, '(%S+) (%d+) (%d+)') do
      local level, at = string.match(redis.call('GET', key) or '', '^(%S+) (%S+)$')
      if level then
        level = tonumber(level) + tonumber(reserved) - tonumber(used)
        redis.call('SET', key, text(level) .. ' ' .. at, 'KEEPTTL')
      end
      if used ~= '0' then kept[#kept + 1] = key .. ' ' .. used .. ' ' .. used end
    end
  end
  if #kept > 0 then
    redis.call('HSET', KEYS[2], each, '~' .. table.concat(kept, ' '))
    redis.call('ZADD', KEYS[1], text(now + MARK_US), each)
  else
    redis.call('HDEL', KEYS[2], each)
    redis.call('ZREM', KEYS[1], each)
  end
end

local count = #KEYS - 2
local streams, shadow, levels, ats, capacities, tokens, windows, amounts = {}, {}, {}, {}, {}, {}, {}, {}
local granted, bit, lacking = 1, 2, {}
for i = 1, count do
  local letter, base, key = string.byte(letters, i), 3 + 3 * i, KEYS[2 + i]
  streams[i], shadow[i] = letter == 99 or letter == 67, letter < 97
  capacities[i], amounts[i] = tonumber(ARGV[base]), tonumber(ARGV[5 + 4 * count + i])
  if streams[i] then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now))
    levels[i] = capacities[i] - redis.call('ZCARD', key) * UNITS
  else
    tokens[i], windows[i] = tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2])
    levels[i], ats[i] = refill(key, capacities[i], tokens[i], windows[i])
  end
  if levels[i] < tonumber(ARGV[5 + 3 * count + i]) then
    lacking[i] = true
    if not shadow[i] then granted = 0 end
    if granted > 0 and shadow[i] then granted = granted + bit end
  end
  bit = bit * 2
end

if op == 'l' then return {1, unpack(levels)} end
local record = redis.call('HGET', KEYS[2], id)
local parts, charged = {}, {}
if op == 'r' then
  if record then return {1, unpack(levels)} end
  if granted == 0 then return {0, unpack(levels)} end
  for i = 1, count do
    if not lacking[i] then
      local amount = streams[i] and UNITS or math.min(amounts[i], levels[i])
      charged[i] = amount
      if not streams[i] then
        parts[#parts + 1] = KEYS[2 + i] .. ' ' .. text(amount) .. ' 0'
      end
    end
  end
else
  granted = 1
  if record == 'done' then return {1, unpack(levels)} end
  local reserved, used = {}, {}
  local lapsed_before = record and string.byte(record) == 126
  if lapsed_before then record = string.sub(record, 2) end
  for key, first, second in string.gmatch(record or '', '(%S+) (%d+) (%d+)') do
    reserved[key], used[key] = tonumber(first), tonumber(second)
  end
  for i = 1, count do
    local key = KEYS[2 + i]
    if streams[i] then
      -- A shadow bucket that was full has no slot of this reservation: none is to be renewed.
      if op == 's' then
        levels[i] = levels[i] + redis.call('ZREM', key, id) * UNITS
      elseif not (record and shadow[i]) or redis.call('ZSCORE', key, id) then
        charged[i] = redis.call('ZSCORE', key, id) and 0 or UNITS
      end
    elseif reserved[key] or lapsed_before or not record then
      local before, amount = reserved[key] or 0, amounts[i]
      if op == 'c' then
        local most = math.max(before, amount)
        parts[#parts + 1] = key .. ' ' .. text(most) .. ' ' .. text(math.max(used[key] or 0, amount))
        charged[i] = most - before
      else
        charged[i] = amount - before
      end
    end
  end
end

local longest_us = 0
for i = 1, count do
  local key, amount = KEYS[2 + i], charged[i]
  if amount then
    levels[i] = math.max(math.min(capacities[i], levels[i] - amount), MAX_DEBT)
    if streams[i] then
      redis.call('ZADD', key, text(now + lease), id)
      redis.call('PEXPIRE', key, text(math.ceil(lease / 1000) + SLACK_MS))
    else
      local full_us = fill(capacities[i] - levels[i], tokens[i], windows[i]) + math.max(0, ats[i] - now)
      local value = string.format('%.0f %.0f', levels[i], ats[i])
      redis.call('SET', key, value, 'PX', text(math.ceil(full_us / 1000) + SLACK_MS))
      longest_us = math.max(longest_us, full_us)
    end
  end
end
local keep_us = op == 's' and DONE_US or lease
redis.call('HSET', KEYS[2], id, op == 's' and 'done' or table.concat(parts, ' '))
redis.call('ZADD', KEYS[1], text(now + keep_us), id)
-- After lease and filling no reservation can matter: whatever it held has flowed in again.
local keep_ms = math.ceil((keep_us + longest_us) / 1000) + SLACK_MS
if redis.call('PTTL', KEYS[1]) < keep_ms then
  redis.call('PEXPIRE', KEYS[1], text(keep_ms + KEEP_MS))
  redis.call('PEXPIRE', KEYS[2], text(keep_ms + KEEP_MS))
end
return {granted, unpack(levels)}
