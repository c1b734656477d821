/** The types of sinks, each with the member and label of its target. */

import type { Schemas } from "../../api";

type Sink = Schemas["Sink"];
export type SinkType = Sink["type"];
type Target = "url" | "name" | "function" | "queue" | "topic" | "bus";

export const SINK_TYPES: Record<SinkType, { title: string; member: Target; label: string; hint: string; example: string }> = {
  http: { title: "A service, over HTTP", member: "url", label: "URL", hint: "The broker posts each batch to it.", example: "https://shop.example.org/hooks/orders" },
  "event-type": { title: "Another event type", member: "name", label: "Event type", hint: "The broker publishes the events to it.", example: "order.large" },
  lambda: { title: "A function in AWS Lambda", member: "function", label: "Function", hint: "Its ARN. The broker invokes it with each batch.", example: "arn:aws:lambda:eu-central-1:123456789012:function:ship" },
  sqs: { title: "A queue in Amazon SQS", member: "queue", label: "Queue", hint: "Its ARN or its URL. It gets a message for each event.", example: "arn:aws:sqs:eu-central-1:123456789012:orders.fifo" },
  sns: { title: "A topic in Amazon SNS", member: "topic", label: "Topic", hint: "Its ARN. It gets a message for each event.", example: "arn:aws:sns:eu-central-1:123456789012:orders.fifo" },
  eventbridge: { title: "A bus in Amazon EventBridge", member: "bus", label: "Event bus", hint: "Its ARN. It gets each event.", example: "arn:aws:events:eu-central-1:123456789012:event-bus/orders" },
};

export const targetOf = (sink: Sink): string => sink[SINK_TYPES[sink.type].member] ?? "";
