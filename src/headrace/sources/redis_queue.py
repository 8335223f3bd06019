"""A queue in Redis Streams (extra `redis`; Redis 6.2 or newer, Valkey too).

How this works. One stream with one consumer group holds the messages. A stream knows who read an entry and how long ago,
but not until when it is lent: XCLAIM sets no idle time in the future, so a loan could not be extended beyond the timeout
it began with, and every reader would have to use the same one. The moment at which each delivery runs out is therefore
kept beside it, in a sorted set, whose members are the receipts themselves (`entry-id/receive-count`):

    headrace:{NAME}            stream    messages; group `headrace`
    headrace:{NAME}:lent       sorted    receipt -> when the loan runs out (ms)
    headrace:{NAME}:held       sorted    receipt -> when a nacked message may be received again (ms)
    headrace:{NAME}:delayed    sorted    a message sent with a delay, packed -> when it enters the stream (ms)
    headrace:{NAME}:dead       stream    dead letters with their reason
    headrace:{NAME}:wake       list      at most one token: somebody who waits is to look

An entry has the fields `id`, `sent` (ms), `body` and, where a result waits with it, `kept`. Those that others add have whatever
they have; the scripts' `read` says what that means, and what is dead-lettered or postponed has our fields from then on.

A receipt that is not in `lent` is stale; nothing else has to be asked. Every step that touches more than one key is one
Lua script, so it happens wholly or not at all, and time is the server's, so clients need no common clock. The braces keep
all keys in one slot of a Redis Cluster; a server that is one of a cluster is asked for the others.

Who waits for a message waits for the token (BLPOP), which wakes one, not for the stream, which would send every entry to
everybody who waits. A receiver that finds as many messages as it can take passes the token on.

How durable a send is, is the server's business: `appendonly yes` with `appendfsync everysec` (the usual choice) may lose
the last second when the power fails, `always` nothing. `maxmemory-policy` must be `noeviction`; where the memory is
full, sends fail, and everything else goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

from headrace.base.errors import MissingExtra, QueueRefused, QueueUnavailable, SettingsError, SourceError
from headrace.base.protocols import STALE
from headrace.base.records import Burial, DeadLetter, Message, Postponed, QueueStatistics
from headrace.base.settings import check
from headrace.sources.untrusted import encode_entry, read_guarded

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisClusterException
    from redis.retry import Retry

    from headrace.sources.redis_sentinel import SCHEME, SentinelAddress
except ImportError as error:
    raise MissingExtra("a queue in Redis", "redis") from error
#: Entries per script, so that no script holds up the server's other clients for long.
MOST_PER_CALL = 500
#: A long poll wakes this often to look for loans that ran out, beyond those it knows the moment of.
LONGEST_BLOCK_SECONDS = 1.0
#: A heartbeat must not be stuck behind one call: with one more try it waits twice as long.
SOCKET_SECONDS = 5.0

# KEYS everywhere: 1 stream, 2 lent, 3 held, 4 delayed, 5 dead, 6 wake.
_PRELUDE = """
local stream, lent, held, delayed, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake = KEYS[6]
local group, consumer = 'headrace', 'headrace'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function add(id, sent, body, kept)
    if kept and kept ~= '' then
        redis.call('XADD', stream, '*', 'id', id, 'sent', sent, 'body', body, 'kept', kept)
    else
        redis.call('XADD', stream, '*', 'id', id, 'sent', sent, 'body', body)
    end
end
local function ring()
    if redis.call('LLEN', wake) == 0 then redis.call('RPUSH', wake, 1) end
end
-- Entry and count of a receipt; nil where it is none: a stranger's.
local function parsed(receipt) return string.match(receipt, '^(%d+%-%d+)/(%d+)$') end
-- What an entry says: id, moment sent (ms), body, what is kept. One by another producer need have none of these fields: its id
-- and time are then the entry's, and its body is the value of its only field, or all of its fields as a JSON object. Here and
-- nowhere else, so that a message is the same when it is received, peeked at, postponed and redriven.
local function read(entry, found)
    local by = {}
    for i = 1, #found, 2 do by[found[i]] = found[i + 1] end
    local sent = string.match(by.sent or '', '^%d+$')
    if not sent or #sent ~= 13 then sent = string.match(entry, '^%d+') end  -- seconds would be in 1970: long given up
    local body = by.body or (#found == 2 and found[2])
    if not body then
        local members = {}  -- in order, and a field that stands twice does so here
        for i = 1, #found, 2 do members[#members + 1] = cjson.encode(found[i]) .. ':' .. cjson.encode(found[i + 1]) end
        body = '{' .. table.concat(members, ',') .. '}'
    end
    return {by.id ~= '' and by.id or entry, sent, body, by.body and by.kept or ''}
end
local function put(fields, name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
end
"""

# The same for scripts that change something but store no new message. Where the memory is full (`maxmemory`), Redis refuses
# commands that may need some, unless the script has written before: so it begins with a write that does nothing, and a full
# queue can be received, extended, acked and so emptied.
_CHANGE = (
    _PRELUDE
    + """
redis.call('ZREM', lent, '')
"""
)

# ARGV: delay in ms, then id and body of each message.
_SEND = (
    _PRELUDE
    + """
local delay = tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
    if delay > 0 then
        redis.call('ZADD', delayed, now + delay, cmsgpack.pack({ARGV[i], now, ARGV[i + 1]}))
    else
        add(ARGV[i], now, ARGV[i + 1])
    end
end
if #ARGV > 1 then ring() end
"""
)

# ARGV: most, visibility in ms. Returns rows {entry, count, what it says} and ms until the next is due or -1.
_RECEIVE = (
    _CHANGE
    + """
local most, visibility = tonumber(ARGV[1]), tonumber(ARGV[2])
local rows = {}

for _, packed in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, most)) do
    local readable, message = pcall(cmsgpack.unpack, packed)
    readable = readable and type(message) == 'table'
    if not (readable and pcall(add, message[1], message[2], message[3], message[4])) then
        redis.call('XADD', stream, '*', 'body', packed)  -- no message of ours: it ends like any that is no job
    end
    redis.call('ZREM', delayed, packed)
end

local function lend(entry, count, fields)
    redis.call('ZADD', lent, now + visibility, entry .. '/' .. count)
    rows[#rows + 1] = {entry, count, read(entry, fields)}
end

-- Loans that ran out and messages that were held back: the next delivery of an entry that is pending already.
for _, key in ipairs({lent, held}) do
    for _, receipt in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most - #rows)) do
        local entry, count = parsed(receipt)
        redis.call('ZREM', key, receipt)
        local claimed = entry and redis.call('XCLAIM', stream, group, consumer, 0, entry) or {}
        if claimed[1] then lend(entry, count + 1, claimed[1][2]) end
    end
end

if #rows < most then
    local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', most - #rows, 'STREAMS', stream, '>')
    if new then
        for _, entry in ipairs(new[1][2]) do lend(entry[1], 1, entry[2]) end
    end
end

local due = -1
if #rows == 0 then
    for _, key in ipairs({lent, held, delayed}) do
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        if first[2] and (due < 0 or first[2] - now < due) then due = math.max(first[2] - now, 0) end
    end
end
-- Nothing is left: nobody need look. As many as were asked for: there may be more, for somebody else.
if #rows < most then redis.call('DEL', wake) else ring() end
return {rows, due}
"""
)

# ARGV: receipts. Returns those that are stale.
_ACK = (
    _CHANGE
    + """
local stale = {}
for _, receipt in ipairs(ARGV) do
    if redis.call('ZREM', lent, receipt) == 1 then
        local entry = parsed(receipt)
        redis.call('XACK', stream, group, entry)
        redis.call('XDEL', stream, entry)
    else
        stale[#stale + 1] = receipt
    end
end
return stale
"""
)

# ARGV: delay in ms, receipts. Returns those that are stale.
_NACK = (
    _CHANGE
    + """
local stale = {}
for i = 2, #ARGV do
    if redis.call('ZREM', lent, ARGV[i]) == 1 then
        redis.call('ZADD', held, now + ARGV[1], ARGV[i])
    else
        stale[#stale + 1] = ARGV[i]
    end
end
if #stale < #ARGV - 1 then ring() end
return stale
"""
)

# ARGV: ms, receipts. Returns those that are stale. Resets the idle time too, for people who look with XPENDING.
_EXTEND = (
    _CHANGE
    + """
local stale = {}
for i = 2, #ARGV do
    if redis.call('ZSCORE', lent, ARGV[i]) then
        redis.call('ZADD', lent, now + ARGV[1], ARGV[i])
        local entry = parsed(ARGV[i])
        redis.call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', 0, 'JUSTID')
    else
        stale[#stale + 1] = ARGV[i]
    end
end
return stale
"""
)

# ARGV: of each, receipt, delay in ms, what is kept. Returns those that are stale.
_POSTPONE = (
    _CHANGE
    + """
local stale = {}
for i = 1, #ARGV, 3 do
    local found = {}
    if redis.call('ZREM', lent, ARGV[i]) == 1 then
        local entry = parsed(ARGV[i])
        found = redis.call('XRANGE', stream, entry, entry)
        redis.call('XACK', stream, group, entry)
        redis.call('XDEL', stream, entry)
    end
    if found[1] then
        local id, sent, body = unpack(read(found[1][1], found[1][2]))
        redis.call('ZADD', delayed, now + ARGV[i + 1], cmsgpack.pack({id, tonumber(sent), body, ARGV[i + 2]}))
    else
        stale[#stale + 1] = ARGV[i]
    end
end
if 3 * #stale < #ARGV then ring() end
return stale
"""
)

# ARGV: of each, receipt, reason, what is kept. Returns those that are stale. Each letter is written before its entry is
# removed: a script that fails half-way stays half done.
_DEAD_LETTER = (
    _CHANGE
    + """
local stale = {}
for i = 1, #ARGV, 3 do
    local receipt = ARGV[i]
    local entry, count = parsed(receipt)
    local found = redis.call('ZSCORE', lent, receipt) and redis.call('XRANGE', stream, entry, entry) or {}
    if found[1] then
        local id, sent, body = unpack(read(entry, found[1][2]))
        local fields = {'id', id, 'sent', sent, 'body', body, 'reason', ARGV[i + 1], 'count', count}
        if ARGV[i + 2] ~= '' then put(fields, 'kept', ARGV[i + 2]) end
        redis.call('XADD', dead, '*', unpack(fields))
        redis.call('XACK', stream, group, entry)
        redis.call('XDEL', stream, entry)
    else
        stale[#stale + 1] = receipt
    end
    redis.call('ZREM', lent, receipt)
end
return stale
"""
)

# ARGV: most, 1 to leave behind what is kept. Returns how many were moved.
_REDRIVE = (
    _CHANGE
    + """
-- Anybody may write letters, and older versions copied every field: so the letter itself is moved.
local function without(found, names)
    local fields = {}
    for i = 1, #found, 2 do
        if not names[found[i]] then put(fields, found[i], found[i + 1]) end
    end
    if #fields > 4000 then return {'fields', cjson.encode(fields)} end  -- more than `unpack` takes; a stranger's
    return fields
end
local letters = redis.call('XRANGE', dead, '-', '+', 'COUNT', ARGV[1])
local left_out = {reason = 1, count = 1}
if ARGV[2] == '1' then left_out.kept = 1 end
for _, letter in ipairs(letters) do
    local fields = without(letter[2], left_out)
    if #fields == 0 then put(fields, 'reason', 'an empty letter') end
    redis.call('XADD', stream, '*', unpack(fields))
    redis.call('XDEL', dead, letter[1])
end
if #letters > 0 then ring() end
return #letters
"""
)

_STATISTICS = (
    _PRELUDE
    + """
local expired = redis.call('ZCOUNT', lent, '-inf', now)
local in_flight = redis.call('ZCARD', lent) - expired
local held_now = redis.call('ZCOUNT', held, '-inf', now)
local ready = redis.call('ZCOUNT', delayed, '-inf', now)
local num_delayed = redis.call('ZCARD', held) - held_now + redis.call('ZCARD', delayed) - ready
local never = redis.call('XLEN', stream) - redis.call('ZCARD', lent) - redis.call('ZCARD', held)

local oldest = -1
local function older(entry)
    local found = redis.call('XRANGE', stream, entry, '+', 'COUNT', 1)
    if found[1] then
        local sent = tonumber(read(found[1][1], found[1][2])[2])
        if oldest < 0 or sent < oldest then oldest = sent end
    end
end
if never > 0 then
    for _, one in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local info = {}
        for i = 1, #one, 2 do info[one[i]] = one[i + 1] end
        if info['name'] == group then older('(' .. info['last-delivered-id']) end
    end
end
-- Of those offered again, the first hundred: more would hold up the server for a number that people only look at.
for _, key in ipairs({lent, held}) do
    for _, receipt in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 100)) do
        local entry = parsed(receipt)
        if entry then older(entry) end
    end
end
for _, packed in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, 100)) do
    local readable, message = pcall(cmsgpack.unpack, packed)
    local sent = readable and type(message) == 'table' and tonumber(message[2])
    if sent and (oldest < 0 or sent < oldest) then oldest = sent end
end
local age = -1
if oldest >= 0 then age = math.max(now - oldest, 0) end
return {never + expired + held_now + ready, in_flight, num_delayed, redis.call('XLEN', dead), age}
"""
)

# Returns messages that could be received now: {entry, count, what it says}. ARGV: most.
_PEEK = (
    _PRELUDE
    + """
local rows, most = {}, tonumber(ARGV[1])
for _, key in ipairs({lent, held}) do
    for _, receipt in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most - #rows)) do
        local entry, count = parsed(receipt)
        local found = entry and redis.call('XRANGE', stream, entry, entry) or {}
        if found[1] then rows[#rows + 1] = {entry, tonumber(count), read(entry, found[1][2])} end
    end
end
for _, one in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #one, 2 do info[one[i]] = one[i + 1] end
    if info['name'] == group and #rows < most then
        local found = redis.call('XRANGE', stream, '(' .. info['last-delivered-id'], '+', 'COUNT', most - #rows)
        for _, entry in ipairs(found) do rows[#rows + 1] = {entry[1], 0, read(entry[1], entry[2])} end
    end
end
return rows
"""
)

_PURGE = (
    _CHANGE
    + """
local count = redis.call('XLEN', stream) + redis.call('ZCARD', delayed)
redis.call('DEL', stream, lent, held, delayed, wake)
redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
return count
"""
)

# Makes the group, with the stream. Returns how many entries it gave back that somebody read past this adapter (XREADGROUP by
# hand) and that would be lent for ever. ARGV: idle ms.
_OPEN = (
    _CHANGE
    + """
local made = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
local strays = 0
for _, pending in ipairs(redis.call('XPENDING', stream, group, 'IDLE', ARGV[1], '-', '+', 1000)) do
    local receipt = pending[1] .. '/' .. pending[4]
    if not redis.call('ZSCORE', lent, receipt) and not redis.call('ZSCORE', held, receipt) then
        redis.call('ZADD', held, now, receipt)
        strays = strays + 1
    end
end
return strays
"""
)


class RedisQueue:
    """A queue in Redis Streams. Thread-safe; the connection pool belongs to the object.

    Args:
        url: `redis://[user:password@]host:port/database`, `rediss://` for TLS, or of Sentinels: see `redis_sentinel`.
        queue: Name of the queue.
        visibility_seconds: How long a received message stays lent.

    Raises:
        MissingExtra: On import, if the package `redis` is not installed.
        SettingsError: If the URL cannot be used.
        QueueUnavailable: If the server does not answer.
        SourceError: If the key holds something else.
    """

    def __init__(self, url: str, *, queue: str = "jobs", visibility_seconds: float = 30.0) -> None:
        check(0 < visibility_seconds <= 43_200, "visibility_seconds", visibility_seconds, "above 0, up to 43200 (12 h)")
        check(bool(queue) and not set(queue) & set("{}"), "queue", queue, "a name without braces")
        self._name = f"{_hide_password(url)}?queue={queue}"
        self._visibility_seconds = float(visibility_seconds)
        stream = f"headrace:{{{queue}}}"
        self._keys = [stream, f"{stream}:lent", f"{stream}:held", f"{stream}:delayed", f"{stream}:dead"]
        self._keys.append(f"{stream}:wake")
        self._scripts: dict[str, Callable[..., Any]] = {}
        self._closed = False
        self._redis: Any = None
        with self._translate_errors():
            self._redis = self._connect(url)
        try:
            with self._translate_errors():
                self._redis = _connect_cluster(self._redis, url)
                self._run(_OPEN, [round(visibility_seconds * 1000)])
        except BaseException:
            _close(self._redis)
            raise

    def _connect(self, url: str) -> Any:
        settings = {"retry": Retry(NoBackoff(), 1), **_timeouts()}
        if url.startswith(SCHEME):
            return SentinelAddress.parse(url).open_primary(**settings)
        try:
            return redis.Redis.from_url(url, **settings)
        except ValueError:
            raise SettingsError(f"the address of {self._name} cannot be used by the redis package") from None

    @property
    def name(self) -> str:
        """Address without user and password."""
        return self._name

    @property
    def visibility_seconds(self) -> float:
        """Visibility timeout given to each delivery."""
        return self._visibility_seconds

    def send(self, bodies: Sequence[bytes], *, delay_seconds: float = 0.0) -> list[str]:
        """Store messages and return their ids in order; how durable, see the module."""
        ids = [os.urandom(16).hex() for _ in bodies]
        with self._translate_errors():
            for start in range(0, len(bodies), MOST_PER_CALL):
                pairs = zip(ids[start : start + MOST_PER_CALL], bodies[start : start + MOST_PER_CALL], strict=True)
                arguments: list[Any] = [_ms(delay_seconds)]
                for pair in pairs:
                    arguments.extend(pair)
                self._run(_SEND, arguments)
        return ids

    def receive(self, max_messages: int, *, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to max_messages (500 at most per call), first those offered again; wait for the first."""
        give_up_at = time.monotonic() + wait_seconds
        most = min(max_messages, MOST_PER_CALL)
        with self._translate_errors():
            while True:
                rows, due_ms = self._run(_RECEIVE, [most, _ms(self._visibility_seconds)])
                messages = [_message(*row) for row in rows]
                left = give_up_at - time.monotonic()
                if messages or left <= 0:
                    return messages
                pause = min(left, LONGEST_BLOCK_SECONDS)
                if due_ms >= 0:
                    pause = min(pause, due_ms / 1000)
                # Not XREADGROUP: an entry it hands out would be lent without a moment at which the loan runs out.
                if self._redis.blpop([self._keys[5]], timeout=max(0.001, pause)) is None and pause == left:
                    return []

    def ack(self, receipts: Sequence[str]) -> dict[str, str]:
        """Remove messages for good; STALE for those that are gone or that another receiver has."""
        return self._each(_ACK, [], receipts)

    def nack(self, receipts: Sequence[str], *, delay_seconds: float = 0.0) -> dict[str, str]:
        """Offer messages again after a delay."""
        return self._each(_NACK, [_ms(delay_seconds)], receipts)

    def extend(self, receipts: Sequence[str], seconds: float) -> dict[str, str]:
        """Extend the loans to this many seconds from now."""
        return self._each(_EXTEND, [_ms(seconds)], receipts)

    def postpone(self, postponed: Sequence[Postponed]) -> dict[str, str]:
        """Offer messages again later as if they were new; see `protocols.Queue.postpone`."""
        return self._move(_POSTPONE, [[one.message.receipt, _ms(one.delay_seconds), one.kept] for one in postponed])

    def dead_letter(self, burials: Sequence[Burial]) -> dict[str, str]:
        """Move messages with their reasons to the dead letters, each atomically."""
        try:
            return self._move(_DEAD_LETTER, [[one.message.receipt, one.reason, one.kept] for one in burials])
        except QueueUnavailable:
            raise
        except SourceError as error:
            raise QueueRefused(f"the dead letters cannot be written: {error}") from error

    def _move(self, script: str, rows: Sequence[list[Any]]) -> dict[str, str]:
        """Run a script that takes three arguments for each message, and return those that are stale."""
        failures: dict[str, str] = {}
        with self._translate_errors():
            for start in range(0, len(rows), MOST_PER_CALL):
                arguments = [argument for row in rows[start : start + MOST_PER_CALL] for argument in row]
                failures.update((receipt.decode(), STALE) for receipt in self._run(script, arguments))
        return failures

    def statistics(self) -> QueueStatistics:
        """Return counts of one moment; the oldest age looks at the first hundred of those offered again."""
        with self._translate_errors():
            visible, in_flight, delayed, dead, age_ms = self._run(_STATISTICS, [])
        return QueueStatistics(
            visible=visible,
            in_flight=in_flight,
            delayed=delayed,
            dead=dead,
            oldest_age_seconds=None if age_ms < 0 else age_ms / 1000,
        )

    def peek(self, max_messages: int, *, dead: bool = False) -> list[Message] | list[DeadLetter]:
        """Return messages that could be received now, or dead letters, without touching them; receipts are empty."""
        with self._translate_errors():
            if dead:
                letters = cast("list[Any]", self._redis.xrange(self._keys[4], count=max_messages))
                return [_dead_letter(entry, fields) for entry, fields in letters]
            return [replace(_message(*row), receipt="") for row in self._run(_PEEK, [max_messages])]

    def redrive(self, max_messages: int | None = None, *, rework: bool = False) -> int:
        """Move the oldest dead letters back with a receive count of zero and return how many."""
        moved = 0
        with self._translate_errors():
            while max_messages is None or moved < max_messages:
                left = MOST_PER_CALL if max_messages is None else min(MOST_PER_CALL, max_messages - moved)
                count = self._run(_REDRIVE, [left, int(rework)])
                moved += count
                if count < left:
                    break
        return moved

    def purge(self, *, dead: bool = False) -> int:
        """Remove all messages, those in flight included, or all dead letters, and return how many."""
        with self._translate_errors():
            if dead:
                return int(self._redis.xtrim(self._keys[4], maxlen=0, approximate=False))
            return int(self._run(_PURGE, []))

    def close(self) -> None:
        """Release connections; messages in flight come back after their visibility timeout."""
        self._closed = True
        _close(self._redis)

    def _each(self, script: str, arguments: list[Any], receipts: Sequence[str]) -> dict[str, str]:
        wanted = list(dict.fromkeys(receipts))
        failures: dict[str, str] = {}
        with self._translate_errors():
            for start in range(0, len(wanted), MOST_PER_CALL):
                stale = self._run(script, [*arguments, *wanted[start : start + MOST_PER_CALL]])
                failures.update((receipt.decode(), STALE) for receipt in stale)
        return failures

    def _run(self, script: str, arguments: list[Any]) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        try:
            return self._scripts[script](keys=self._keys, args=arguments)
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
            self._run(_OPEN, [round(self._visibility_seconds * 1000)])  # somebody deleted the stream
            return self._scripts[script](keys=self._keys, args=arguments)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        if self._closed:
            raise QueueUnavailable(f"{self._name} was closed")
        try:
            yield
        except (redis.RedisError, RedisClusterException) as error:
            # Where no Sentinel helps, the package appends the settings of all its clients.
            text = f"{self._name}: {type(error).__name__}: {str(error).partition(' : <')[0]}"
            if "WRONGTYPE" in text:
                raise SourceError(
                    f"{self._name}: the key {self._keys[0]}, or one that begins like it, holds something that is no queue"
                ) from error
            if any(word in text for word in _MOVED) and isinstance(self._redis, redis.Redis):
                # The address may lead to another server by now, while connections to the one before stay open.
                self._redis.connection_pool.disconnect(inuse_connections=False)
            is_refused = isinstance(error, redis.ResponseError | redis.AuthenticationError)
            if is_refused and not any(word in text for word in _PASSING):
                raise QueueRefused(text) from error
            raise QueueUnavailable(text) from error


#: Words of refusals by a server that is no primary, or no longer one: of the package's errors, and of the server's where a
#: script passes them on.
_MOVED = ("ReadOnlyError", "READONLY", "UNBLOCKED", "BusyLoadingError", "LOADING", "MasterDownError", "MASTERDOWN")
#: Words of refusals that end by themselves: failover, memory, disk, resharding, somebody's long script.
_PASSING = (
    *_MOVED,
    *("OutOfMemoryError", "OOM", "MISCONF", "NOREPLICAS", "BUSY", "max number of clients", "UNKILLABLE"),
    *("ClusterDownError", "CLUSTERDOWN", "TryAgainError", "TRYAGAIN", "MovedError", "MOVED", "AskError", "ASK "),
)


def _hide_password(url: str) -> str:
    """Return an address without user and password."""
    if url.startswith(SCHEME):
        return str(SentinelAddress.parse(url))
    parts = urlsplit(url)
    database = parts.path.strip("/") or "0"
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{parts.port or 6379}/{database}"


def _timeouts() -> dict[str, Any]:
    return {"socket_timeout": SOCKET_SECONDS, "socket_connect_timeout": SOCKET_SECONDS}


def _connect_cluster(client: redis.Redis, url: str) -> Any:
    """Return a client of the whole cluster where the server is one of a cluster, else the client itself."""
    if url.startswith(SCHEME):
        return client  # Sentinels watch over no cluster
    try:
        found = client.info("cluster")
    except redis.ResponseError:  # this user may not ask: then it is the server that was named
        return client
    if not found.get("cluster_enabled"):
        return client
    client.close()
    return redis.RedisCluster.from_url(url, **_timeouts())


def _close(client: Any) -> None:
    """Close all connections of a client; that of a cluster leaves those to its nodes open."""
    is_cluster = isinstance(client, redis.RedisCluster)
    nodes = client.get_nodes() if is_cluster else ()
    client.close()
    for node in nodes:
        if node.redis_connection is not None:
            node.redis_connection.connection_pool.disconnect()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _message(entry: bytes, count: int, says: list[bytes]) -> Message:
    """Return the message of an entry, from what the scripts' `read` made of it."""
    receipt = f"{entry.decode()}/{count}"
    id_, sent, body, kept = says
    sent_at = int(sent) / 1000

    def read(_: object) -> Message:
        try:
            return Message(id_.decode(), body, receipt, count, sent_at, kept)
        except UnicodeDecodeError:
            raise ValueError(f"its field `id` is not UTF-8: {id_[:60]!r}; leave it out, or send text") from None

    def read_malformed(_: object, reason: str) -> Message:
        return Message(entry.decode(), body or encode_entry(body), receipt, count, sent_at, malformed=reason)

    return read_guarded(None, read, read_malformed)


def _dead_letter(entry: bytes, by: dict[bytes, bytes]) -> DeadLetter:
    """Return a dead letter; one that this adapter did not write shows what it has."""
    reason = by.get(b"reason", b"no reason given").decode("utf-8", "backslashreplace")
    count = int(by[b"count"]) if by.get(b"count", b"").isdigit() else 0
    try:
        return DeadLetter(by[b"id"].decode(), by[b"body"], reason, count, _moment(entry), by.get(b"kept", b""))
    except (KeyError, UnicodeDecodeError):
        found = {name: value for name, value in by.items() if name not in (b"reason", b"count")}
        return DeadLetter(entry.decode(), _format_entry(found), reason, count, _moment(entry))


def _format_entry(by: dict[bytes, bytes]) -> bytes:
    """Return what a foreign entry holds: its body, or all of its fields as JSON."""
    return by.get(b"body") or encode_entry({encode_entry(name).decode(): value for name, value in by.items()})


def _moment(entry: bytes) -> float:
    """Return when an entry was added, Unix seconds: its id says so, unless its sender chose it."""
    return int(entry.partition(b"-")[0]) / 1000
