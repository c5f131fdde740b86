// MQTT.js tries to get in, to subscribe and to publish: prints what comes of each of the cases on standard input, a JSON list.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const mqtt = createRequire(process.env.INFLIGHT_NODE_MODULES + "/")("mqtt");
const [url, protocolVersion] = process.argv.slice(2);

const attempt = ({ clientId, username, password, filter, topic }) =>
  new Promise((resolve) => {
    const options = { clientId, username, password, protocolVersion: Number(protocolVersion), clean: true, reconnectPeriod: 0 };
    const client = mqtt.connect(url, options);
    const answers = {};
    const end = () => { client.end(true); resolve(answers); };
    client.on("error", (error) => { answers.connack ??= error.code; end(); });
    client.on("close", end);
    client.on("connect", (connack) => {
      answers.connack = connack.reasonCode ?? connack.returnCode;
      client.subscribe(filter, { qos: 1 }, (error, granted, packet) => {
        answers.suback = packet?.granted?.[0] ?? error?.code;
        client.publish(topic, "p", { qos: 1 }, (failed, puback) => {
          answers.puback = failed ? failed.code : puback.reasonCode ?? 0;
          end();
        });
      });
    });
  });

for (const one of JSON.parse(readFileSync(0, "utf8"))) console.log(JSON.stringify(await attempt(one)));
