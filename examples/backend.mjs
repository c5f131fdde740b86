// A backend with KafkaJS 2: sends two messages, and reads what became of them (docs/guides/kafka_clients.md).
//
//     node examples/backend.mjs KAFKA ONLINE AWAY
//
// ONLINE and AWAY are client ids; the message for AWAY ends at once if that client is not connected, and is a dead letter then.
// INFLIGHT_NODE_MODULES names a node_modules directory with kafkajs, if there is none beside this file.
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";

const modules = process.env.INFLIGHT_NODE_MODULES;
const { Kafka, Partitioners, logLevel } = createRequire(modules ? modules + "/" : import.meta.url)("kafkajs");
const [brokers, online, away] = process.argv.slice(2);
const RECEIPTS = "inflight.receipts", DEAD_LETTERS = "inflight.dead-letters";

const kafka = new Kafka({ clientId: "backend-js", brokers: [brokers], logLevel: logLevel.ERROR });
const admin = kafka.admin();
await admin.connect();
const ends = await Promise.all([RECEIPTS, DEAD_LETTERS].map(async (topic) => [topic, await admin.fetchTopicOffsets(topic)]));
await admin.disconnect();

// Kafka's own hash of the key. LegacyPartitioner, and KafkaJS before 2.0, have another one: a client's order would be lost.
const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, idempotent: true });
await producer.connect();
const sent = new Map([[online, randomUUID()], [away, randomUUID()]]);
const message = (clientId, more) => ({
  key: clientId,
  value: "on",
  headers: { "mqtt-topic": "commands/switch", "mqtt-qos": "1", "message-id": sent.get(clientId), ...more },
});
await producer.send({ topic: "inflight.messages", acks: -1, messages: [message(online, {}), message(away, { expiration: "0" })] });
await producer.disconnect();

const waiting = new Set([...sent.values(), "dead letter"]);
const consumer = kafka.consumer({ groupId: `backend-js-${randomUUID()}` });
await consumer.connect();
await consumer.subscribe({ topics: [RECEIPTS, DEAD_LETTERS] });
const done = new Promise((resolve) => {
  consumer.run({
    eachMessage: async ({ topic, message: record }) => {
      if (topic === RECEIPTS) {
        const found = JSON.parse(record.value.toString()); // an array with engine.receipts_batched
        for (const receipt of Array.isArray(found) ? found : [found]) {
          if (receipt.final && waiting.delete(receipt.message_id)) console.log(`${receipt.client_id}: ${receipt.outcome}`);
        }
      } else if (record.headers["message-id"]?.toString() === sent.get(away) && waiting.delete("dead letter")) {
        console.log(`dead letter of ${record.key}: ${record.headers["x-first-death-reason"]}`);
      }
      if (waiting.size === 0) resolve();
    },
  });
});
for (const [topic, partitions] of ends) {
  for (const { partition, high } of partitions) consumer.seek({ topic, partition, offset: high });
}
await done;
await consumer.disconnect();
