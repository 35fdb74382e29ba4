// node-redlock with ioredis, told what to do line by line: see ../src/child.rs.
import { createInterface } from "node:readline";
import Redis from "ioredis";
import redlock from "redlock";

const Redlock = redlock.default ?? redlock;
const TTL = 30_000;
const HOLD = 5;
const clients = process.argv[2].split(",").map((url) => new Redis(url));
for (const client of clients) client.on("error", () => {});
await Promise.all(clients.map((client) => client.ping()));
const once = new Redlock(clients, { retryCount: 0 });
// Its own delays, and no end.
const patient = new Redlock(clients, { retryCount: -1 });
for (const lock of [once, patient]) lock.on("error", () => {});

const now = () => process.hrtime.bigint();

async function pair(resource) {
  const started = now();
  const lock = await once.acquire([resource], TTL);
  const acquired = now();
  await lock.release();
  return `ok ${acquired - started} ${now() - acquired}`;
}

async function many(callers, millis) {
  const [started, before] = [now(), process.cpuUsage()];
  const end = Date.now() + Number(millis);
  let pairs = 0;
  const work = async (caller) => {
    while (Date.now() < end) {
      const lock = await once.acquire([`many-${process.pid}-${caller}`], TTL);
      await lock.release();
      pairs += 1;
    }
  };
  await Promise.all([...Array(Number(callers)).keys()].map(work));
  const { user, system } = process.cpuUsage(before);
  return `ok ${pairs} ${now() - started} ${(user + system) * 1000}`;
}

async function turns(resource, millis) {
  const end = Date.now() + Number(millis);
  const holds = [];
  while (Date.now() < end) {
    const lock = await patient.acquire([resource], TTL);
    const from = now();
    await new Promise((resolve) => setTimeout(resolve, HOLD));
    const to = now();
    await lock.release();
    holds.push(`${from} ${to}\n`);
  }
  return `${holds.join("")}ok`;
}

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...rest] = line.split(" ");
  try {
    console.log(await { pair, many, turns }[verb](...rest));
  } catch (error) {
    console.log(`failed ${String(error).replaceAll("\n", " ")}`);
  }
}
process.exit(0);
