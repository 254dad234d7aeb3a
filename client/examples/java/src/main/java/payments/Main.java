package payments;

import com.google.protobuf.Duration;
import idempotency.v1.ClaimRequest;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import payments.idempotent.Coordinator;
import payments.idempotent.IdempotentFilter;

/**
 * A payment service: POST /payments, once for each Idempotency-Key.
 *
 * <pre>
 *   mvn package
 *   java -jar target/payments.jar --listen 127.0.0.1:8080 --coordinator 127.0.0.1:50051
 * </pre>
 *
 * The wallet is played, so that a test can say what it does: header X-Wallet.
 */
public final class Main {
  private Main() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> flags = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      flags.put(arguments[i], arguments[i + 1]);
    }
    if (flags.containsKey("--check_vectors")) {
      System.out.println(Vectors.check(Path.of(flags.get("--check_vectors"))) + " vectors");
      return;
    }
    ClaimRequest.Builder terms =
        ClaimRequest.newBuilder().setScope("payments").setPolicy("payment");
    if (flags.containsKey("--lease_ms")) { // Else the policy's.
      long ms = Long.parseLong(flags.get("--lease_ms"));
      terms.setLease(
          Duration.newBuilder().setSeconds(ms / 1000).setNanos((int) (ms % 1000) * 1_000_000));
    }
    Coordinator coordinator =
        new Coordinator(flags.getOrDefault("--coordinator", "127.0.0.1:50051"));
    String[] listen = flags.getOrDefault("--listen", "127.0.0.1:8080").split(":");

    Tomcat tomcat = new Tomcat();
    tomcat.setHostname(listen[0]);
    tomcat.setPort(Integer.parseInt(listen[1]));
    tomcat.getConnector().setProperty("address", listen[0]);
    Context context = tomcat.addContext("", null);
    FilterDef once = new FilterDef();
    once.setFilterName("once");
    once.setFilter(new IdempotentFilter(coordinator, terms.build()));
    context.addFilterDef(once);
    FilterMap everywhere = new FilterMap();
    everywhere.setFilterName("once");
    everywhere.addURLPattern("/*");
    context.addFilterMap(everywhere);
    Tomcat.addServlet(context, "payments", new Payments());
    context.addServletMappingDecoded("/payments", "payments");
    tomcat.start();
    tomcat.getServer().await();
  }
}
