// k6: requests at a constant arrival rate (RATE in ten seconds), or as fast as VUS clients get answers (RATE=0).
import { sleep } from "k6";
import http from "k6/http";
import { SharedArray } from "k6/data";
import { Counter, Trend } from "k6/metrics";

const texts = new SharedArray("texts", () => JSON.parse(open(__ENV.TEXTS)));
const rate = Number(__ENV.RATE), vus = Number(__ENV.VUS), each = Number(__ENV.EACH);
const answered = new Trend("answered", true), refused = new Counter("refused"), failed = new Counter("failed");

const open_loop = { executor: "constant-arrival-rate", rate, timeUnit: "10s", preAllocatedVUs: vus, maxVUs: vus };
export const options = {
  scenarios: { load: { ...(rate ? open_loop : { executor: "constant-vus", vus }), duration: __ENV.DURATION, gracefulStop: "5s" } },
  summaryTrendStats: ["count", "p(50)", "p(99)", "max"],
  discardResponseBodies: true,
};

export default function () {
  const chosen = [];
  for (let i = 0; i < each; i++) chosen.push(texts[Math.floor(Math.random() * texts.length)]);
  const headers = { "Content-Type": "application/json" };
  const answer = http.post(__ENV.URL, JSON.stringify({ texts: chosen }), { headers, timeout: "10s" });
  if (answer.status === 200) answered.add(answer.timings.duration);
  else if (answer.status === 503) {
    refused.add(1);
    if (!rate) sleep(0.1); // a client that asks again at once would only be refused again
  }
  else failed.add(1);
}

export function handleSummary(data) {
  const count = (name) => (data.metrics[name] ? data.metrics[name].values.count : 0);
  const times = data.metrics.answered ? data.metrics.answered.values : { count: 0 };
  return {
    stdout: JSON.stringify({
      answered: times.count, p50_ms: times["p(50)"], p99_ms: times["p(99)"], most_ms: times.max,
      refused: count("refused"), failed: count("failed"), not_sent: count("dropped_iterations"),
      seconds: data.state.testRunDurationMs / 1000,
    }),
  };
}
