// A device with MQTT.js, MQTT 5 and a session that is kept for a day (docs/guides/devices.md).
//
//     node examples/device.mjs mqtt://HOST:PORT CLIENT_ID
//
// Prints each message. INFLIGHT_NODE_MODULES names a node_modules directory with mqtt, if there is none beside this file.
import { createRequire } from "node:module";

const modules = process.env.INFLIGHT_NODE_MODULES;
const mqtt = createRequire(modules ? modules + "/" : import.meta.url)("mqtt");
const [url, clientId] = process.argv.slice(2);

const device = mqtt.connect(url, { clientId, protocolVersion: 5, clean: false, properties: { sessionExpiryInterval: 86_400 } });
device.on("connect", () => console.log("connected"));
device.on("message", (topic, payload, packet) => console.log(`${topic} ${payload} (QoS ${packet.qos})`));
