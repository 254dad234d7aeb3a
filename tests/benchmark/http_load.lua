-- wrk's side of the rows about HTTP. Its arguments after "--": which keys the
-- requests have (fresh, replay or none), the number of connections, the body
-- of every request, the body that every answer must have. The first wrong
-- answer ends wrk. The last line that is printed is JSON.
--
-- The latency of a lone connection is taken here. wrk adds to what it measured
-- the requests that it would have sent in every pause, and with them a few
-- hiccups of the machine move the median.
local ffi = require("ffi")

ffi.cdef [[
   typedef struct { long seconds, nanoseconds; } moment;
   int clock_gettime(int clock, moment* now);
]]

local MONOTONIC = 1
local WARM_UP_US = 1e5
local REPLAYED_KEYS = 100

local threads = {}
local moment = ffi.new("moment[1]")
local keys, alone, expected
local head, tail  -- of a request, around its key
local random, sent_requests = "", 0
local began_us, sent_us

waits_us = {}  -- global: read by done(), which runs in another state

local function now_us()
   ffi.C.clock_gettime(MONOTONIC, moment)
   return tonumber(moment[0].seconds) * 1e6 +
          tonumber(moment[0].nanoseconds) / 1e3
end

local function fail(...)
   io.stderr:write("http_load.lua: ", ...)
   io.stderr:write("\n")
   os.exit(1)
end

-- As long as a UUID; `number` differs for each key.
local function key(prefix, number)
   return (string.format("%-24s%012d", prefix, number):gsub(" ", "-"))
end

function setup(thread)
   threads[#threads + 1] = thread
end

function init(args)
   keys, alone, expected = args[1], args[2] == "1", args[4]
   local headers = {["Content-Type"] = "application/json"}
   if keys ~= "none" then headers["Idempotency-Key"] = "@" end
   local request = wrk.format("POST", nil, headers, args[3])
   head, tail = request, ""
   if keys ~= "none" then head, tail = request:match("^(.-)@(.*)$") end
   local source = assert(io.open("/dev/urandom", "rb"))
   random = source:read(12):gsub(".", function(byte)
      return string.format("%02x", byte:byte())
   end)
   source:close()
   began_us = now_us()
end

function request()
   sent_requests = sent_requests + 1
   local whole = head
   if keys == "fresh" then
      whole = head .. key(random, sent_requests) .. tail
   elseif keys == "replay" then
      whole = head .. key("replay", sent_requests % REPLAYED_KEYS) .. tail
   end
   sent_us = now_us()
   return whole
end

function response(status, headers, body)
   local answered_us = now_us()
   local replayed = headers["Idempotent-Replayed"] == "true"
   if status ~= 201 or body ~= expected or replayed ~= (keys == "replay") then
      fail("wrong answer: ", status, replayed and " replayed " or " ", body)
   end
   if alone and sent_us - began_us > WARM_UP_US then
      waits_us[#waits_us + 1] = answered_us - sent_us
   end
end

function done(summary)
   for name, count in pairs(summary.errors) do
      if count > 0 then fail(count, " errors of kind ", name) end
   end
   local waits = threads[1]:get("waits_us")
   table.sort(waits)
   print(string.format(
      '{"requests": %d, "seconds": %.6f, "p50_us": %.1f}', summary.requests,
      summary.duration / 1e6, waits[math.ceil(#waits / 2)] or 0))
end
