import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
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
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.WindowStore;

/** Kafka Streams: `KafkaStreamsPeer WORKLOAD BOOTSTRAP ROOM DIRECTORY THREADS`, until SIGTERM. */
public class KafkaStreamsPeer {
    static final Serde<String> STRING = Serdes.String();
    static final Serde<Long> LONG = Serdes.Long();
    static final ObjectMapper MAPPER = new ObjectMapper();

    public record Trade(String type, String ticker, double price, int size) { }
    public record Statistics(double minimum, long trades, double total, double average) { }
    public record Profile(int age, String gender, List<String> interests) { }
    public record PageView(String page) { }
    public record Search(String terms) { }
    public record Activity(String page, Profile profile, String search_terms) { }
    public record Order(String product, int quantity, String customer) { }

    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        String room = arguments[2];
        switch (arguments[0]) {
            case "W1", "latency-1" -> wordCount(builder, room);
            case "latency-2" -> countsCountedAgain(builder, room);
            case "W2" -> stockStatistics(builder, room);
            case "W3" -> clickstream(builder, room);
            case "W4" -> orderFilter(builder, room);
            case "W5", "latency" -> countByKey(builder, room);
            default -> relay(builder, room);
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, room);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, Integer.parseInt(arguments[4]));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        if (System.getenv("COMMIT_INTERVAL_MS") != null) {
            settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, Long.parseLong(System.getenv("COMMIT_INTERVAL_MS")));
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        CountDownLatch over = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            over.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        over.await();
        System.exit(1);
    }

    static void wordCount(StreamsBuilder builder, String room) {
        builder.stream(room + "-lines", Consumed.with(STRING, STRING))
            .flatMapValues(line -> Arrays.asList(line.toLowerCase().split("\\W+")))
            .groupBy((key, word) -> word, Grouped.with(STRING, STRING))
            .count(Materialized.as("counts"))
            .toStream()
            .to(room + "-out", Produced.with(STRING, LONG));
    }

    static void stockStatistics(StreamsBuilder builder, String room) {
        Serde<Trade> trades = Serdes.serdeFrom(
            (topic, trade) -> { throw new UnsupportedOperationException("trades are only read"); },
            (topic, raw) -> {
                String[] fields = new String(raw, StandardCharsets.UTF_8).split(",");
                return new Trade(fields[0], fields[1], Double.parseDouble(fields[2]), Integer.parseInt(fields[3]));
            });
        builder.stream(room + "-trades", Consumed.with(STRING, trades))
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(5)).advanceBy(Duration.ofSeconds(1)))
            .aggregate(
                () -> new Statistics(0, 0, 0, 0),
                (ticker, trade, soFar) -> {
                    long count = soFar.trades() + 1;
                    double total = soFar.total() + trade.price();
                    double minimum = count == 1 ? trade.price() : Math.min(soFar.minimum(), trade.price());
                    return new Statistics(minimum, count, total, total / count);
                },
                Materialized.<String, Statistics, WindowStore<Bytes, byte[]>>as("statistics")
                    .withKeySerde(STRING).withValueSerde(json(Statistics.class)))
            .toStream()
            .to(room + "-out", Produced.with(
                WindowedSerdes.timeWindowedSerdeFrom(String.class, 5_000), json(Statistics.class)));
    }

    static void clickstream(StreamsBuilder builder, String room) {
        Serde<Integer> user = Serdes.Integer();
        Serde<PageView> view = json(PageView.class);
        Serde<Profile> profile = json(Profile.class);
        Serde<Activity> activity = json(Activity.class);
        KTable<Integer, Profile> profiles = builder.table(room + "-profiles", Consumed.with(user, profile));
        KStream<Integer, PageView> views = builder.stream(room + "-views", Consumed.with(user, view));
        KStream<Integer, Search> searches = builder.stream(room + "-searches", Consumed.with(user, json(Search.class)));
        views.leftJoin(profiles, (it, of) -> new Activity(it.page(), of, null), Joined.with(user, view, profile))
            .leftJoin(
                searches,
                (it, search) -> search == null ? it : new Activity(it.page(), it.profile(), search.terms()),
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ZERO).before(Duration.ofSeconds(1)),
                StreamJoined.with(user, activity, json(Search.class)))
            .to(room + "-out", Produced.with(user, activity));
    }

    static void orderFilter(StreamsBuilder builder, String room) {
        Serde<Order> order = json(Order.class);
        builder.stream(room + "-orders", Consumed.with(STRING, order))
            .filter((key, it) -> it.quantity() > 5)
            .to(room + "-out", Produced.with(STRING, order));
    }

    static void countByKey(StreamsBuilder builder, String room) {
        builder.stream(room + "-in", Consumed.with(STRING, STRING))
            .groupByKey()
            .count(Materialized.as("counts"))
            .toStream()
            .to(room + "-out", Produced.with(STRING, LONG));
    }

    static void countsCountedAgain(StreamsBuilder builder, String room) {
        builder.stream(room + "-lines", Consumed.with(STRING, STRING))
            .flatMapValues(line -> Arrays.asList(line.toLowerCase().split("\\W+")))
            .groupBy((key, word) -> word, Grouped.with(STRING, STRING))
            .count(Materialized.as("counts"))
            .toStream()
            .groupBy((word, count) -> word, Grouped.with(STRING, LONG))
            .count(Materialized.as("changes"))
            .toStream()
            .to(room + "-out", Produced.with(STRING, LONG));
    }

    static void relay(StreamsBuilder builder, String room) {
        Serde<byte[]> bytes = Serdes.ByteArray();
        builder.stream(room + "-in", Consumed.with(bytes, bytes)).to(room + "-out", Produced.with(bytes, bytes));
    }

    static <T> Serde<T> json(Class<T> type) {
        ObjectReader reader = MAPPER.readerFor(type);
        ObjectWriter writer = MAPPER.writerFor(type);
        Serializer<T> encode = (topic, value) -> {
            try {
                return value == null ? null : writer.writeValueAsBytes(value);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        Deserializer<T> decode = (topic, raw) -> {
            try {
                return raw == null ? null : reader.readValue(raw);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        };
        return Serdes.serdeFrom(encode, decode);
    }
}
