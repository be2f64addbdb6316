import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.query.*;
import org.apache.kafka.streams.state.*;
import java.io.*;
import java.time.*;
import java.util.*;

public class StoreOracle {
  static final ObjectMapper M = new ObjectMapper();
  static StoreBuilder<?> builder(JsonNode c) {
    Serde<String> s = Serdes.String();
    boolean p = c.get("persistent").asBoolean();
    switch (c.get("kind").asText()) {
      case "window": {
        Duration r = Duration.ofMillis(c.get("retention").asLong()), z = Duration.ofMillis(c.get("size").asLong());
        boolean d = c.get("duplicates").asBoolean();
        return Stores.windowStoreBuilder(p ? Stores.persistentWindowStore("s", r, z, d) : Stores.inMemoryWindowStore("s", r, z, d), s, s).withCachingDisabled().withLoggingDisabled();
      }
      case "session": {
        Duration r = Duration.ofMillis(c.get("retention").asLong());
        return Stores.sessionStoreBuilder(p ? Stores.persistentSessionStore("s", r) : Stores.inMemorySessionStore("s", r), s, s).withCachingDisabled().withLoggingDisabled();
      }
      case "versioned":
        return Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("s", Duration.ofMillis(c.get("history").asLong())), s, s).withLoggingDisabled();
      case "lru":
        return Stores.keyValueStoreBuilder(Stores.lruMap("s", c.get("max_entries").asInt()), s, s).withCachingDisabled().withLoggingDisabled();
      default:
        return Stores.keyValueStoreBuilder(p ? Stores.persistentKeyValueStore("s") : Stores.inMemoryKeyValueStore("s"), s, s).withCachingDisabled().withLoggingDisabled();
    }
  }
  static String str(JsonNode n) { return n.isNull() ? null : n.asText(); }
  static ArrayNode windowed(KeyValueIterator<Windowed<String>, String> it) {
    ArrayNode a = M.createArrayNode();
    while (it.hasNext()) { KeyValue<Windowed<String>, String> e = it.next(); a.addArray().add(e.key.key()).add(e.key.window().start()).add(e.key.window().end()).add(e.value); }
    it.close(); return a;
  }
  static ArrayNode pairs(KeyValueIterator<String, String> it) {
    ArrayNode a = M.createArrayNode();
    while (it.hasNext()) { KeyValue<String, String> e = it.next(); a.addArray().add(e.key).add(e.value); }
    it.close(); return a;
  }
  static ArrayNode times(WindowStoreIterator<String> it) {
    ArrayNode a = M.createArrayNode();
    while (it.hasNext()) { KeyValue<Long, String> e = it.next(); a.addArray().add(e.key).add(e.value); }
    it.close(); return a;
  }
  static JsonNode txt(String s) { return s == null ? NullNode.instance : TextNode.valueOf(s); }
  static JsonNode versioned(VersionedRecord<String> r) {
    if (r == null) return NullNode.instance;
    ArrayNode a = M.createArrayNode().add(r.value()).add(r.timestamp());
    if (r.validTo().isPresent()) a.add(r.validTo().get()); else a.addNull();
    return a;
  }
  @SuppressWarnings("unchecked")
  static JsonNode run(JsonNode c, JsonNode o, Object store) {
    String f = o.get(0).asText();
    switch (c.get("kind").asText()) {
      case "window": {
        WindowStore<String, String> s = (WindowStore<String, String>) store;
        switch (f) {
          case "put": s.put(str(o.get(1)), str(o.get(2)), o.get(3).asLong()); return NullNode.instance;
          case "get": return txt(s.fetch(str(o.get(1)), o.get(2).asLong()));
          case "fetch": return times(s.fetch(str(o.get(1)), Instant.ofEpochMilli(o.get(2).asLong()), Instant.ofEpochMilli(o.get(3).asLong())));
          case "backward_fetch": return times(s.backwardFetch(str(o.get(1)), Instant.ofEpochMilli(o.get(2).asLong()), Instant.ofEpochMilli(o.get(3).asLong())));
          case "fetch_all": return windowed(s.fetchAll(Instant.ofEpochMilli(o.get(1).asLong()), Instant.ofEpochMilli(o.get(2).asLong())));
          case "all": return windowed(s.all());
        }
        break;
      }
      case "session": {
        SessionStore<String, String> s = (SessionStore<String, String>) store;
        switch (f) {
          case "put": s.put(new Windowed<>(str(o.get(1)), new SessionWindow(o.get(3).asLong(), o.get(4).asLong())), str(o.get(2))); return NullNode.instance;
          case "remove": s.remove(new Windowed<>(str(o.get(1)), new SessionWindow(o.get(2).asLong(), o.get(3).asLong()))); return NullNode.instance;
          case "fetch_session": return txt(s.fetchSession(str(o.get(1)), o.get(2).asLong(), o.get(3).asLong()));
          case "find_sessions": return windowed(s.findSessions(str(o.get(1)), o.get(2).asLong(), o.get(3).asLong()));
          case "backward_find_sessions": return windowed(s.backwardFindSessions(str(o.get(1)), o.get(2).asLong(), o.get(3).asLong()));
          case "fetch": return windowed(s.fetch(str(o.get(1))));
          case "backward_fetch": return windowed(s.backwardFetch(str(o.get(1))));
        }
        break;
      }
      case "versioned": {
        VersionedKeyValueStore<String, String> s = (VersionedKeyValueStore<String, String>) store;
        switch (f) {
          case "put": return LongNode.valueOf(s.put(str(o.get(1)), str(o.get(2)), o.get(3).asLong()));
          case "delete": return versioned(s.delete(str(o.get(1)), o.get(2).asLong()));
          case "get": return versioned(s.get(str(o.get(1))));
          case "get_as_of": return versioned(s.get(str(o.get(1)), o.get(2).asLong()));
          case "history": {
            QueryResult<VersionedRecordIterator<String>> q = s.query(MultiVersionedKeyQuery.<String, String>withKey(str(o.get(1))).fromTime(Instant.ofEpochMilli(o.get(2).asLong())).toTime(Instant.ofEpochMilli(o.get(3).asLong())).withAscendingTimestamps(), PositionBound.unbounded(), new QueryConfig(false));
            if (q.isFailure()) throw new RuntimeException(q.getFailureMessage());
            ArrayNode a = M.createArrayNode();
            VersionedRecordIterator<String> it = q.getResult();
            while (it.hasNext()) a.add(versioned(it.next()));
            it.close(); return a;
          }
        }
        break;
      }
      default: {
        KeyValueStore<String, String> s = (KeyValueStore<String, String>) store;
        switch (f) {
          case "put": s.put(str(o.get(1)), str(o.get(2))); return NullNode.instance;
          case "get": return txt(s.get(str(o.get(1))));
          case "put_if_absent": return txt(s.putIfAbsent(str(o.get(1)), str(o.get(2))));
          case "delete": return txt(s.delete(str(o.get(1))));
          case "range": return pairs(s.range(str(o.get(1)), str(o.get(2))));
          case "reverse_range": return pairs(s.reverseRange(str(o.get(1)), str(o.get(2))));
          case "prefix_scan": return pairs(s.prefixScan(str(o.get(1)), new StringSerializer()));
          case "all": return pairs(s.all());
          case "reverse_all": return pairs(s.reverseAll());
          case "approximate_size": return LongNode.valueOf(s.approximateNumEntries());
        }
      }
    }
    throw new RuntimeException("unknown " + o);
  }
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
    String line; int n = 0;
    while ((line = in.readLine()) != null) {
      ObjectNode c = (ObjectNode) M.readTree(line);
      Topology t = new Topology();
      ArrayNode results = M.createArrayNode();
      t.addSource("src", new StringDeserializer(), new StringDeserializer(), "in");
      t.addProcessor("p", () -> new Processor<String, String, Void, Void>() {
        ProcessorContext<Void, Void> ctx;
        public void init(ProcessorContext<Void, Void> x) { ctx = x; }
        public void process(org.apache.kafka.streams.processor.api.Record<String, String> r) {
          Object store = ctx.getStateStore("s");
          for (JsonNode o : c.get("ops")) results.add(run(c, o, store));
        }
      }, "src");
      t.addStateStore(builder(c), "p");
      Properties props = new Properties();
      props.put("application.id", "a" + (n++)); props.put("bootstrap.servers", "x:1");
      props.put("state.dir", System.getProperty("java.io.tmpdir") + "/so" + ProcessHandle.current().pid());
      try (TopologyTestDriver d = new TopologyTestDriver(t, props)) {
        d.createInputTopic("in", new StringSerializer(), new StringSerializer()).pipeInput("k", "v", 0L);
        double drops = 0;
        for (Map.Entry<?, ?> e : d.metrics().entrySet()) {
          org.apache.kafka.common.MetricName name = (org.apache.kafka.common.MetricName) e.getKey();
          if (name.name().equals("dropped-records-total")) drops += (Double) ((org.apache.kafka.common.Metric) e.getValue()).metricValue();
        }
        c.put("dropped", (long) drops);
      }
      c.set("results", results);
      out.println(M.writeValueAsString(c));
    }
  }
}
