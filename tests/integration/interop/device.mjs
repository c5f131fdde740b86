// A device written with mqtt.js: connects, subscribes, prints each payload as a line of JSON, ends after COUNT messages.
import { createRequire } from "node:module";

const require = createRequire(process.env.INFLIGHT_NODE_MODULES + "/");
const mqtt = require("mqtt");
const [url, clientId, protocolVersion, count] = process.argv.slice(2);

const options = { clientId, protocolVersion: Number(protocolVersion), clean: false, reconnectPeriod: 200 };
if (options.protocolVersion === 5) options.properties = { sessionExpiryInterval: 3600 };
const client = mqtt.connect(url, options);
let seen = 0;

client.on("connect", (connack) => {
  client.subscribe("cmd/#", { qos: 2 }, (error) => {
    if (error) throw error;
    client.publish("state/up", "hello", { qos: 2 }, (failed) => {
      if (failed) throw failed;
      console.log(JSON.stringify({ event: "ready", sessionPresent: connack.sessionPresent }));
    });
  });
});
client.on("message", (topic, payload, packet) => {
  console.log(JSON.stringify({ event: "message", topic, payload: payload.toString(), qos: packet.qos, dup: packet.dup }));
  seen += 1;
  if (seen === Number(count)) client.end();
});
client.on("close", () => { if (seen === Number(count)) process.exit(0); });
