import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.Stores;

/** The programs of test_java.py in Java: `Programs.java PROGRAM BOOTSTRAP ROOM DIRECTORY`, until its input ends. */
public class Programs {
    static final Serde<String> STRING = Serdes.String();
    static final Serde<Long> LONG = Serdes.Long();
    static final long SIZE = 10_000;
    static final Serde<Windowed<String>> WINDOWED = WindowedSerdes.timeWindowedSerdeFrom(String.class, SIZE);
    static final Serde<Windowed<String>> SESSIONS = WindowedSerdes.sessionWindowedSerdeFrom(String.class);

    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        String room = arguments[2];
        switch (arguments[0]) {
            case "word-count" -> wordCount(builder, room);
            case "states" -> states(builder, room);
            case "exchange" -> exchange(builder, room, "java", "headrace");
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, room + (arguments[0].equals("exchange") ? "-java" : ""));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(arguments[3]).toString());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (System.in.read() >= 0) { }
        // Else the group takes it for a member until its session ends, 45 seconds later.
        streams.close(CloseOptions.timeout(Duration.ofSeconds(30))
            .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
    }

    static void wordCount(StreamsBuilder builder, String room) {
        builder.stream(room + "-lines", Consumed.with(STRING, STRING))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(STRING, STRING))
            .count(Materialized.as("counts"))
            .toStream()
            .to(room + "-counts", Produced.with(STRING, LONG));
    }

    /** A store of every kind, each of which shows in what comes out. */
    static void states(StreamsBuilder builder, String room) {
        KStream<String, String> events = builder.stream(room + "-events", Consumed.with(STRING, STRING));
        KStream<String, String> requests = builder.stream(room + "-requests", Consumed.with(STRING, STRING));
        KTable<String, Long> stock = builder.table(room + "-stock", Consumed.with(STRING, LONG), Materialized.as("stock"));
        KTable<String, Long> prices = builder.table(room + "-prices", Consumed.with(STRING, LONG),
            Materialized.as(Stores.persistentVersionedKeyValueStore("prices", Duration.ofHours(1))));
        events.groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(SIZE), Duration.ofDays(1)))
            .count(Materialized.as("windows")).toStream().to(room + "-windowed", Produced.with(WINDOWED, LONG));
        events.groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(500), Duration.ofDays(1)))
            .count(Materialized.as("sessions")).toStream().to(room + "-sessions", Produced.with(SESSIONS, LONG));
        requests.join(stock, (wish, left) -> wish + left, Joined.with(STRING, STRING, LONG))
            .to(room + "-answers", Produced.with(STRING, STRING));
        requests.join(prices, (wish, price) -> wish + price, Joined.with(STRING, STRING, LONG))
            .to(room + "-quotes", Produced.with(STRING, STRING));
        JoinWindows together = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(1), Duration.ofDays(1));
        requests.join(events, (wish, event) -> wish + event, together, StreamJoined.with(STRING, STRING, STRING))
            .to(room + "-pairs", Produced.with(STRING, STRING));
    }

    /** Writes what it makes of the inputs to topics `own-...`, and what it reads in the topics `other-...` as text. */
    static void exchange(StreamsBuilder builder, String room, String own, String other) {
        String mine = room + "-" + own, others = room + "-" + other;
        KStream<String, String> events = builder.stream(room + "-events", Consumed.with(STRING, STRING));
        events.groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(SIZE), Duration.ofDays(1)))
            .count().toStream().to(mine + "-windowed", Produced.with(WINDOWED, LONG));
        events.groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(500), Duration.ofDays(1)))
            .count().toStream().to(mine + "-sessions", Produced.with(SESSIONS, LONG));
        builder.stream(room + "-readings", Consumed.with(LONG, STRING))
            .groupByKey().count().toStream().to(mine + "-longs", Produced.with(LONG, LONG));
        builder.table(room + "-stock", Consumed.with(STRING, LONG))
            .filter((item, count) -> count > 1).mapValues(count -> count * 10)
            .toStream().to(mine + "-table", Produced.with(STRING, LONG));
        read(builder.stream(others + "-windowed", Consumed.with(WINDOWED, LONG)), "windowed", mine);
        read(builder.stream(others + "-sessions", Consumed.with(SESSIONS, LONG)), "sessions", mine);
        read(builder.stream(others + "-longs", Consumed.with(LONG, LONG)), "longs", mine);
        read(builder.table(others + "-table", Consumed.with(STRING, LONG), Materialized.as("stock")).toStream(), "table", mine);
    }

    static <K> void read(KStream<K, Long> stream, String kind, String mine) {
        stream.map((key, value) -> KeyValue.pair(kind, text(key) + "=" + value))
            .to(mine + "-read", Produced.with(STRING, STRING));
    }

    static String text(Object key) {
        return key instanceof Windowed<?> w ? w.key() + "@" + w.window().start() + ".." + w.window().end() : key.toString();
    }
}
