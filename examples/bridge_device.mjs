// A device behind a broker, with MQTT.js: what Inflight's bridge asks of it in `device` mode (docs/bridge.md).
//
//     node examples/bridge_device.mjs mqtt://HOST:PORT CLIENT_ID
//
// Prints each message once. INFLIGHT_NODE_MODULES: a node_modules directory with mqtt, when there is none next to this file.
import { createRequire } from "node:module";

const modules = process.env.INFLIGHT_NODE_MODULES;
const mqtt = createRequire(modules ? modules + "/" : import.meta.url)("mqtt");
const [url, clientId] = process.argv.slice(2);
const REMEMBERED = 10_000; // message ids; keep them where a reboot does not lose them if a reboot must not repeat a message
const done = new Set();

// Whatever this device does. If it throws, nothing is acknowledged, and the message comes again.
function handle(topic, payload) {
  console.log(JSON.stringify({ topic, payload: payload.toString() }));
}

// ---- the few lines ----
const client = mqtt.connect(url, {
  clientId,
  protocolVersion: 5,
  will: { topic: `devices/${clientId}/presence`, payload: Buffer.from("offline"), qos: 1, retain: true },
});
client.on("connect", () => {
  client.subscribe([`devices/${clientId}/cmd/#`, `devices/${clientId}/m/#`], { qos: 2 });
  client.publish(`devices/${clientId}/presence`, "online", { qos: 1, retain: true });
});
client.on("message", (topic, payload, packet) => {
  const { correlationData, responseTopic } = packet.properties ?? {};
  if (!responseTopic) return handle(topic, payload); // QoS 0: nobody waits for an answer
  const messageId = correlationData.toString();
  if (!done.has(messageId)) { // a copy is acknowledged again, and that is all
    handle(topic, payload);
    done.add(messageId);
    if (done.size > REMEMBERED) done.delete(done.values().next().value);
  }
  client.publish(responseTopic, "", { qos: 1, properties: { correlationData } });
});
