// A backend with franz-go: sends two messages, and reads what became of them (docs/guides/kafka_clients.md).
//
//	go run -C examples/go . KAFKA ONLINE AWAY
//
// ONLINE and AWAY are client ids; the message for AWAY ends at once if that client is not connected, and is a dead letter then.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const receipts, deadLetters = "inflight.receipts", "inflight.dead-letters"

type receipt struct {
	MessageID string `json:"message_id"`
	ClientID  string `json:"client_id"`
	Outcome   string `json:"outcome"`
	Final     bool   `json:"final"`
}

func main() {
	kafka, online, away := os.Args[1], os.Args[2], os.Args[3]
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(kafka),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ConsumeTopics(receipts, deadLetters),
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().UnixMilli())),
		// Kafka's own hash of the key, which is franz-go's default. sarama and kafka-go have another one.
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	sent := map[string]string{online: rand.Text(), away: rand.Text()}
	soon := message(away, sent[away])
	soon.Headers = append(soon.Headers, kgo.RecordHeader{Key: "expiration", Value: []byte("0")})
	if err := client.ProduceSync(ctx, message(online, sent[online]), soon).FirstErr(); err != nil {
		log.Fatal(err)
	}

	waiting := map[string]bool{sent[online]: true, sent[away]: true, "dead letter": true}
	for len(waiting) > 0 {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			if record.Topic == receipts {
				for _, one := range decoded(record.Value) {
					if one.Final && waiting[one.MessageID] {
						delete(waiting, one.MessageID)
						fmt.Printf("%s: %s\n", one.ClientID, one.Outcome)
					}
				}
			} else if header(record, "message-id") == sent[away] && waiting["dead letter"] {
				delete(waiting, "dead letter")
				fmt.Printf("dead letter of %s: %s\n", record.Key, header(record, "x-first-death-reason"))
			}
		})
	}
}

func message(clientID, messageID string) *kgo.Record {
	return &kgo.Record{Topic: "inflight.messages", Key: []byte(clientID), Value: []byte("on"), Headers: []kgo.RecordHeader{
		{Key: "mqtt-topic", Value: []byte("commands/switch")},
		{Key: "mqtt-qos", Value: []byte("1")},
		{Key: "message-id", Value: []byte(messageID)},
	}}
}

// decoded returns the receipts of a record: one, or several with engine.receipts_batched.
func decoded(value []byte) []receipt {
	var several []receipt
	if json.Unmarshal(value, &several) == nil {
		return several
	}
	var one receipt
	if json.Unmarshal(value, &one) != nil {
		return nil
	}
	return []receipt{one}
}

func header(record *kgo.Record, name string) string {
	for _, one := range record.Headers {
		if one.Key == name {
			return string(one.Value)
		}
	}
	return ""
}
