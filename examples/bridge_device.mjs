// Runs a device behind a broker with MQTT.js, for the bridge's mode `device` (docs/guides/bridge.md).
//
//     node examples/bridge_device.mjs mqtt://HOST:PORT CLIENT_ID
//
// Prints each message once. INFLIGHT_NODE_MODULES names a node_modules directory with mqtt, if there is none beside this file.
import { createRequire } from "node:module";

const modules = process.env.INFLIGHT_NODE_MODULES;
const mqtt = createRequire(modules ? modules + "/" : import.meta.url)("mqtt");
const [url, clientId] = process.argv.slice(2);
const REMEMBERED = 10_000; // message ids; store them on disk if a reboot must not repeat a message
const done = new Set();

// Does the device's work. If it throws, the message is not acknowledged and comes again.
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
  if (!responseTopic) return handle(topic, payload); // QoS 0 has no acknowledgement
  const messageId = correlationData.toString();
  if (!done.has(messageId)) { // a copy is only acknowledged again
    handle(topic, payload);
    done.add(messageId);
    if (done.size > REMEMBERED) done.delete(done.values().next().value);
  }
  client.publish(responseTopic, "", { qos: 1, properties: { correlationData } });
});
