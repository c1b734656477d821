import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import local.nakadi.api.EventTypesApi;
import local.nakadi.api.MonitoringApi;
import local.nakadi.api.PartitionsAndCursorsApi;
import local.nakadi.api.PublishingApi;
import local.nakadi.api.SchemasApi;
import local.nakadi.api.StoragesAndTimelinesApi;
import local.nakadi.api.StreamingApi;
import local.nakadi.api.SubscriptionsApi;
import local.nakadi.client.ApiClient;
import local.nakadi.client.ApiException;
import local.nakadi.model.Category;
import local.nakadi.model.CompatibilityMode;
import local.nakadi.model.CursorResetList;
import local.nakadi.model.CursorWithEventType;
import local.nakadi.model.EventTypeDraft;
import local.nakadi.model.PartitionCount;
import local.nakadi.model.SchemaDraft;
import local.nakadi.model.Subscription;
import local.nakadi.model.SubscriptionCursor;
import local.nakadi.model.SubscriptionCursorList;
import local.nakadi.model.SubscriptionDraft;
import local.nakadi.model.SubscriptionPartitionStats;
import local.nakadi.model.TimelineDraft;

/** Uses a broker with the generated client as users do. The first argument is the broker's URL. */
public final class Walk {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final EventTypesApi eventTypes;
    private final SchemasApi schemas;
    private final PublishingApi publishing;
    private final StreamingApi streaming;
    private final SubscriptionsApi subscriptions;
    private final PartitionsAndCursorsApi partitions;
    private final StoragesAndTimelinesApi timelines;
    private final MonitoringApi monitoring;
    private final String name = "java." + UUID.randomUUID();

    private Walk(ApiClient client) {
        eventTypes = new EventTypesApi(client);
        schemas = new SchemasApi(client);
        publishing = new PublishingApi(client);
        streaming = new StreamingApi(client);
        subscriptions = new SubscriptionsApi(client);
        partitions = new PartitionsAndCursorsApi(client);
        timelines = new StoragesAndTimelinesApi(client);
        monitoring = new MonitoringApi(client);
    }

    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        Walk walk = new Walk(client);
        walk.manage();
        walk.publishAndStream();
        walk.subscribe();
        walk.end();
        System.out.println("The client in Java did all that it was asked for.");
    }

    private void manage() throws ApiException {
        check("OK", monitoring.getHealth(null));
        eventTypes.createEventType(draft("shop"), null);
        eventTypes.updateEventType(name, draft("till"), null);
        check("till", eventTypes.getEventType(name, null).getOwningApplication());
        schemas.addSchema(name, schema("{\"description\": \"another\"}"), null, false);
        check(2, schemas.listSchemas(name, null, null, null).getItems().size());
        timelines.createTimeline(name, new TimelineDraft().storageId("default"), null);
        check(2, timelines.listTimelines(name, null).size());
    }

    private void publishAndStream() throws Exception {
        publishing.publishEvents(name, List.of(Map.of("n", 0), Map.of("n", 1)), null, null);
        String beginning = "[{\"partition\": \"0\", \"offset\": \"BEGIN\"}]";
        check("01", events(streaming.streamEvents(name, null, beginning, null, 1, 2, 1, null, null)));
    }

    private void subscribe() throws Exception {
        SubscriptionDraft draft = new SubscriptionDraft().owningApplication("shop").eventTypes(List.of(name));
        draft.setReadFrom(SubscriptionDraft.ReadFromEnum.BEGIN);
        Subscription subscription = subscriptions.createSubscription(draft, null);
        String id = subscription.getId().toString();
        draft.setConsumerGroup(subscription.getConsumerGroup());
        subscriptions.updateSubscription(id, draft.annotations(Map.of("team", "a")), null);
        check("a", subscriptions.getSubscription(id, null).getAnnotations().get("team"));

        String newest = partitions.listPartitions(name, null, null).get(0).getNewestAvailableOffset();
        // The client returns a stream when it has ended. It ends when all sent events are committed.
        var thread = Executors.newSingleThreadExecutor();
        Future<File> read = thread.submit(
            () -> subscriptions.streamSubscriptionEvents(id, null, 2, null, 2, null, null, null, null, null));
        String stream = streamOf(id);
        var cursor = new SubscriptionCursor().eventType(name).partition("0").offset(newest).cursorToken("");
        subscriptions.commitSubscriptionCursors(id, stream, new SubscriptionCursorList().items(List.of(cursor)), null);
        check("01", events(read.get(60, TimeUnit.SECONDS)));
        thread.shutdown();

        check(0L, partition(id).getUnconsumedEvents());
        check(newest, subscriptions.getSubscriptionCursors(id, null).getItems().get(0).getOffset());
        var start = new CursorWithEventType().eventType(name).partition("0").offset("BEGIN");
        subscriptions.resetSubscriptionCursors(id, new CursorResetList().items(List.of(start)), null);
        subscriptions.deleteSubscription(id, null);
    }

    private void end() throws ApiException {
        partitions.setPartitionCount(name, new PartitionCount().partitionCount(2), null);
        eventTypes.deleteEventType(name, null);
        try {
            eventTypes.getEventType(name, null);
            throw new AssertionError("it is still there");
        } catch (ApiException gone) {
            check(404, gone.getCode());
        }
    }

    private EventTypeDraft draft(String owner) {
        return new EventTypeDraft()
            .name(name)
            .owningApplication(owner)
            .category(Category.UNDEFINED)
            .compatibilityMode(CompatibilityMode.NONE)
            .schema(schema("{}"));
    }

    private static SchemaDraft schema(String text) {
        return new SchemaDraft().type(SchemaDraft.TypeEnum.JSON_SCHEMA).schema(text);
    }

    private SubscriptionPartitionStats partition(String id) throws ApiException {
        return subscriptions.getSubscriptionStats(id, null, null).getItems().get(0).getPartitions().get(0);
    }

    private String streamOf(String id) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (System.nanoTime() < deadline) {
            String stream = partition(id).getStreamId();
            if (stream != null && !stream.isEmpty()) {
                return stream;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("no stream has the partition");
    }

    /** The numbers of the events in a stream. */
    private static String events(File lines) throws Exception {
        List<String> numbers = new ArrayList<>();
        for (String line : Files.readAllLines(lines.toPath())) {
            for (JsonNode event : JSON.readTree(line).path("events")) {
                numbers.add(event.get("n").asText());
            }
        }
        return String.join("", numbers);
    }

    private static void check(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
