//! The scripts of the engine: the rules of `rules.rs` in Lua, each one atomic step.
//!
//! Every script answers with a list that begins with a word. Epochs are compared as numbers for
//! order, which Lua holds exactly up to 2^53, and as text for equality.

use ::redis::Script;

/// One script for each operation.
pub(super) struct Scripts {
    pub(super) join: Script,
    pub(super) renew: Script,
    pub(super) leave: Script,
    pub(super) nodes: Script,
    pub(super) create: Script,
    pub(super) look_up: Script,
    pub(super) take_over: Script,
    pub(super) update: Script,
    pub(super) touch_many: Script,
    pub(super) release: Script,
    pub(super) remove: Script,
    pub(super) lease_tokens: Script,
    pub(super) lease_slots: Script,
    pub(super) hold: Script,
    pub(super) lease_name: Script,
    pub(super) holder: Script,
    pub(super) let_go: Script,
}

/// Returns a record with its owner's node, or nil where the owner has no lease.
const LOCATED: &str = "
local function located(word, key, nodes)
  local f = redis.call('HMGET', key, 'r', 'e', 'o', 's', 'a')
  local node = false
  if f[3] ~= '' then node = redis.call('GET', nodes .. f[3]) end
  return {word, f[1], f[2], f[3], f[4], f[5], node}
end
";

/// Returns nil where a claim holds, and the answer otherwise. ARGV: version, epoch, owner.
const STANDING: &str = "
local function standing(key, version, epoch, owner)
  local f = redis.call('HMGET', key, 'v', 'e', 'o')
  if not f[1] then return {'unknown'} end
  if f[1] ~= version then return {'version', f[1]} end
  if tonumber(f[2]) < tonumber(epoch) then return {'unknown'} end
  if f[2] ~= epoch or f[3] ~= owner then return {'superseded', f[2], f[3]} end
  return nil
end
";

/// Returns the engine's clock in milliseconds.
const MILLIS: &str = "
local function millis()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
";

/// KEYS: node, nodes, since. ARGV: node as JSON, lease, id.
const JOIN: &str = "
redis.call('SET', KEYS[3], string.format('%.0f', millis()), 'NX')
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return {'done'}
";

/// KEYS: node. ARGV: lease.
const RENEW: &str = "
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 1 then return {'done'} end
return {'unknown'}
";

/// KEYS: node, nodes. ARGV: id.
const LEAVE: &str = "
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return {'done'}
";

/// KEYS: nodes. ARGV: prefix of the nodes. Ids whose lease has ended leave the set.
const NODES: &str = "
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local node = redis.call('GET', ARGV[1] .. id)
  if node then
    found[#found + 1] = node
    found[#found + 1] = tostring(redis.call('PTTL', ARGV[1] .. id))
  else
    redis.call('SREM', KEYS[1], id)
  end
end
return found
";

/// KEYS: session. ARGV: version, epoch, owner, prefix of the nodes, time to live, record, state,
/// last use.
const CREATE: &str = "
local f = redis.call('HMGET', KEYS[1], 'v', 'e', 'o')
if f[1] then
  if f[1] ~= ARGV[1] then return {'version', f[1]} end
  local replaces = tonumber(f[2]) < tonumber(ARGV[2]) or (f[2] == ARGV[2] and f[3] == ARGV[3])
  if not replaces then return located('located', KEYS[1], ARGV[4]) end
end
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'e', ARGV[2], 'o', ARGV[3], 'r', ARGV[6], 's', ARGV[7], 'a', ARGV[8])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {'done'}
";

/// KEYS: session. ARGV: version, prefix of the nodes.
const LOOK_UP: &str = "
local v = redis.call('HGET', KEYS[1], 'v')
if not v then return {'unknown'} end
if v ~= ARGV[1] then return {'version', v} end
return located('located', KEYS[1], ARGV[2])
";

/// KEYS: session. ARGV: version, epoch that was seen, new owner, prefix of the nodes, time to live.
const TAKE_OVER: &str = "
local f = redis.call('HMGET', KEYS[1], 'v', 'e', 'o')
if not f[1] then return {'unknown'} end
if f[1] ~= ARGV[1] then return {'version', f[1]} end
local free = f[3] == '' or f[3] == ARGV[3] or redis.call('EXISTS', ARGV[4] .. f[3]) == 0
if f[2] ~= ARGV[2] or not free then return located('located', KEYS[1], ARGV[4]) end
redis.call('HINCRBY', KEYS[1], 'e', 1)
redis.call('HSET', KEYS[1], 'o', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return located('won', KEYS[1], ARGV[4])
";

/// KEYS: session. ARGV: version, epoch, owner, time to live, field, value.
const UPDATE: &str = "
local answer = standing(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if answer then return answer end
redis.call('HSET', KEYS[1], ARGV[5], ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'done'}
";

/// KEYS: sessions. ARGV: version, then epoch, owner, time to live and last use of each.
const TOUCH_MANY: &str = "
local answers = {}
for at, key in ipairs(KEYS) do
  local base = 4 * at - 2
  local answer = standing(key, ARGV[1], ARGV[base], ARGV[base + 1])
  if not answer then
    redis.call('HSET', key, 'a', ARGV[base + 3])
    redis.call('PEXPIRE', key, ARGV[base + 2])
    answers[#answers + 1] = 'done'
  elseif answer[1] == 'superseded' then
    answers[#answers + 1] = answer[1]
    answers[#answers + 1] = answer[2]
  else
    answers[#answers + 1] = 'unknown'
  end
end
return answers
";

/// KEYS: session. ARGV: version, epoch, owner.
const RELEASE: &str = "
local answer = standing(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if answer and answer[1] == 'superseded' and answer[2] == ARGV[2] and answer[3] == '' then return {'done'} end
if answer then return answer end
redis.call('HSET', KEYS[1], 'o', '')
return {'done'}
";

/// KEYS: session. ARGV: version, epoch, owner.
const REMOVE: &str = "
local answer = standing(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if answer then return answer end
redis.call('DEL', KEYS[1])
return {'done'}
";

/// KEYS: bucket. ARGV: tokens a minute, wanted, spent. The value is the time up to which the bucket
/// is used, in microseconds.
const LEASE_TOKENS: &str = "
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local minute = 60000000
local interval = minute / tonumber(ARGV[1])
local used = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
used = math.min(used + tonumber(ARGV[3]) * interval, now + 2 * minute)
local left = math.max(0, math.floor((now + minute - used) / interval + 0.000001))
local granted = math.min(left, tonumber(ARGV[2]))
used = used + granted * interval
left = left - granted
local wait = 0
if left == 0 then wait = math.max(0, used + interval - now - minute) end
if used > now then
  redis.call('SET', KEYS[1], string.format('%.0f', used), 'PX', string.format('%.0f', math.ceil((used - now) / 1000)))
end
local function text(number) return string.format('%.0f', number) end
return {'done', text(granted), text(left), text(wait)}
";

/// KEYS: pool. ARGV: node, prefix of the nodes, limit, held, wanted, time to live. Members are
/// nodes, and their slots.
const LEASE_SLOTS: &str = "
local members = redis.call('HGETALL', KEYS[1])
local before, others = 0, 0
for at = 1, #members, 2 do
  local node, places = members[at], tonumber(members[at + 1])
  if node == ARGV[1] then
    before = places
  elseif redis.call('EXISTS', ARGV[2] .. node) == 1 then
    others = others + places
  else
    redis.call('HDEL', KEYS[1], node)
  end
end
local room = math.max(0, tonumber(ARGV[3]) - others)
local granted = math.max(tonumber(ARGV[4]), math.min(tonumber(ARGV[5]), room))
local function text(number) return string.format('%.0f', number) end
if granted > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], text(granted))
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return {'done', text(granted), text(before), text(math.max(0, room - granted))}
";

/// KEYS: name. ARGV: node, prefix of the nodes, time to live.
const HOLD: &str = "
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. holder) == 1 then return {'held', holder} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return {'held', ARGV[1]}
";

/// KEYS: name, since. ARGV: node, lease, whether the node has it. A clock that went back makes the
/// registry new.
const LEASE_NAME: &str = "
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {'held', holder} end
if not holder and ARGV[3] ~= '1' then
  local now = millis()
  local since = tonumber(redis.call('GET', KEYS[2]) or '')
  if not since or since > now then
    since = now
    redis.call('SET', KEYS[2], string.format('%.0f', now))
  end
  local left = since + tonumber(ARGV[2]) - now
  if left > 0 then return {'unsettled', string.format('%.0f', left)} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {'held', ARGV[1]}
";

/// KEYS: name.
const HOLDER: &str = "
local holder = redis.call('GET', KEYS[1])
if holder then return {'held', holder} end
return {'unknown'}
";

/// KEYS: name. ARGV: node.
const LET_GO: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return {'done'}
";

impl Scripts {
    pub(super) fn new() -> Self {
        let after = |functions: &str, script: &str| Script::new(&format!("{functions}{script}"));
        Self {
            join: after(MILLIS, JOIN),
            renew: Script::new(RENEW),
            leave: Script::new(LEAVE),
            nodes: Script::new(NODES),
            create: after(LOCATED, CREATE),
            look_up: after(LOCATED, LOOK_UP),
            take_over: after(LOCATED, TAKE_OVER),
            update: after(STANDING, UPDATE),
            touch_many: after(STANDING, TOUCH_MANY),
            release: after(STANDING, RELEASE),
            remove: after(STANDING, REMOVE),
            lease_tokens: Script::new(LEASE_TOKENS),
            lease_slots: Script::new(LEASE_SLOTS),
            hold: Script::new(HOLD),
            lease_name: after(MILLIS, LEASE_NAME),
            holder: Script::new(HOLDER),
            let_go: Script::new(LET_GO),
        }
    }
}
