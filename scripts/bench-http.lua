-- Load of one turn, for wrk: a path, a body in which KEY stands for the key, and the number of keys. Prints requests
-- per second, and the median and the 99th percentile of latency in microseconds.

local requests, turn = {}, 0

-- Threads start at different keys.
local threads = 0
function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(args)
    local path, body, keys = args[1], args[2], tonumber(args[3])
    for key = 1, keys do
        local own = body:gsub("KEY", "user" .. key)
        requests[key] = wrk.format("POST", path, { ["content-type"] = "application/json" }, own)
    end
    turn = math.floor(keys / 2) * number
end

function request()
    turn = turn % #requests + 1
    return requests[turn]
end

function done(summary, latency)
    local per_second = summary.requests / summary.duration * 1e6
    io.write(string.format("%.0f %.0f %.0f\n", per_second, latency:percentile(50), latency:percentile(99)))
end
