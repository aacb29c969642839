-- Requests for wrk: `wrk -s wrk.lua URL -- BODIES` sends lines of the file BODIES, in random order, and prints the
-- results as JSON. After a refusal, a thread of wrk waits a tenth of a second before its next request.
local requests, wait = {}, 0

function init(arguments)
  local headers = {["content-type"] = "application/json"}
  for body in io.lines(arguments[1]) do
    requests[#requests + 1] = wrk.format("POST", nil, headers, body)
  end
end

function request()
  return requests[math.random(#requests)]
end

function response(status)
  if status == 503 then wait = 100 end
end

function delay()
  local now = wait
  wait = 0
  return now
end

function done(summary, latency, _)
  local errors = summary.errors
  print(string.format(
    '{"answered": %d, "seconds": %f, "refused": %d, "failed": %d, "p50_ms": %f, "p99_ms": %f, "most_ms": %f}',
    summary.requests - errors.status, summary.duration / 1e6, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000))
end
