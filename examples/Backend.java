import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A backend with Kafka's own client: sends two messages, and reads what became of them (docs/guides/kafka_clients.md).
 *
 * <pre>java -cp kafka-clients.jar:slf4j-api.jar:jackson-databind.jar:… examples/Backend.java KAFKA ONLINE AWAY</pre>
 *
 * ONLINE and AWAY are client ids; the message for AWAY ends at once if that client is not connected, and is a dead letter then.
 * The default partitioner is the right one.
 */
public class Backend {
    static final String RECEIPTS = "inflight.receipts", DEAD_LETTERS = "inflight.dead-letters";

    public static void main(String[] arguments) throws Exception {
        String kafka = arguments[0], online = arguments[1], away = arguments[2];
        try (var consumer = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", kafka), new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = Stream.of(RECEIPTS, DEAD_LETTERS).flatMap(topic -> consumer.partitionsFor(topic).stream())
                .map(one -> new TopicPartition(one.topic(), one.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position); // the ends of now, not of the first poll

            Map<String, String> sent = Map.of(online, UUID.randomUUID().toString(), away, UUID.randomUUID().toString());
            try (var producer = new KafkaProducer<>(Map.<String, Object>of("bootstrap.servers", kafka, "acks", "all"), new StringSerializer(), new StringSerializer())) {
                producer.send(message(online, sent.get(online))).get();
                ProducerRecord<String, String> soon = message(away, sent.get(away));
                soon.headers().add("expiration", bytes("0"));
                producer.send(soon).get();
            }

            Set<String> waiting = new HashSet<>(sent.values());
            waiting.add("dead letter");
            while (!waiting.isEmpty()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (record.topic().equals(RECEIPTS)) {
                        JsonNode found = new ObjectMapper().readTree(record.value()); // an array with engine.receipts_batched
                        for (JsonNode receipt : found.isArray() ? found : List.of(found)) {
                            if (receipt.get("final").asBoolean() && waiting.remove(receipt.get("message_id").asText())) {
                                System.out.println(receipt.get("client_id").asText() + ": " + receipt.get("outcome").asText());
                            }
                        }
                    } else if (sent.get(away).equals(header(record, "message-id")) && waiting.remove("dead letter")) {
                        System.out.println("dead letter of " + record.key() + ": " + header(record, "x-first-death-reason"));
                    }
                }
            }
        }
    }

    static ProducerRecord<String, String> message(String clientId, String messageId) {
        var record = new ProducerRecord<>("inflight.messages", clientId, "on");
        record.headers().add("mqtt-topic", bytes("commands/switch")).add("mqtt-qos", bytes("1")).add("message-id", bytes(messageId));
        return record;
    }

    static String header(ConsumerRecord<String, String> record, String name) {
        var found = record.headers().lastHeader(name);
        return found == null ? null : new String(found.value(), StandardCharsets.UTF_8);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
