package payments.idempotent;

import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import idempotency.v1.Header;
import idempotency.v1.Response;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Map.Entry;
import java.util.Set;

/** A whole response. */
record Answer(int status, List<Entry<String, String>> headers, byte[] body) {
  /** What a message of 4 MiB takes together with its headers. */
  private static final int BODY_MAX = 3 << 20;

  /** Of one connection, not of the operation: they are not recorded. */
  private static final Set<String> HOP_BY_HOP =
      Set.of("connection", "content-length", "date", "keep-alive", "server", "transfer-encoding");

  /** As of RFC 9457. */
  static Answer problem(int status, String type) {
    return problem(status, type, Duration.ZERO, new JsonObject());
  }

  static Answer problem(int status, String type, Duration retryAfter) {
    return problem(status, type, retryAfter, new JsonObject());
  }

  static Answer problem(int status, String type, CallFailed failure) {
    JsonObject members = new JsonObject();
    if (!failure.reason.isEmpty()) {
      members.addProperty("reason", failure.reason);
    }
    if (!failure.field.isEmpty()) {
      members.addProperty("field", failure.field);
    }
    return problem(status, type, failure.retryAfter, members);
  }

  private static Answer problem(int status, String type, Duration retryAfter, JsonObject members) {
    members.addProperty("type", "urn:idempotency:" + type);
    members.addProperty("title", type.replace('-', ' '));
    members.addProperty("status", status);
    List<Entry<String, String>> headers = new ArrayList<>();
    headers.add(Map.entry("Content-Type", "application/problem+json"));
    if (!retryAfter.isZero()) {
      long seconds = (retryAfter.toMillis() + 999) / 1000;
      headers.add(Map.entry("Retry-After", Long.toString(seconds)));
    }
    return new Answer(status, headers, members.toString().getBytes(StandardCharsets.UTF_8));
  }

  /** The user's fault, or else the program's own. */
  static Answer unacceptable(CallFailed failure) {
    return failure.field.equals("key")
        ? problem(400, "key-malformed", failure)
        : problem(500, "misconfigured", failure);
  }

  /** What was recorded, marked as such. */
  static Answer replayed(Response recorded) {
    int status = recorded.getStatusCode();
    boolean bodiless = status == 204 || status == 205 || status == 304;
    if (recorded.getBodyOmitted() && !bodiless || status < 200 || status > 599) {
      return problem(410, "response-not-kept");
    }
    List<Entry<String, String>> headers = new ArrayList<>();
    for (Header header : recorded.getHeadersList()) {
      String value = header.getValue().toString(StandardCharsets.ISO_8859_1);
      headers.add(Map.entry(header.getName(), value));
    }
    headers.add(Map.entry("Idempotent-Replayed", "true"));
    if (recorded.getHeadersOmitted()) {
      headers.add(Map.entry("Idempotent-Headers-Omitted", "true"));
    }
    return new Answer(status, headers, recorded.getBody().toByteArray());
  }

  /**
   * The response as it is recorded. A body too long for a message is left out: what was done must
   * not be done again because its answer was long.
   */
  Response toMessage() {
    Response.Builder message = Response.newBuilder().setStatusCode(status);
    if (body.length > BODY_MAX) {
      message.setBodyOmitted(true);
    } else {
      message.setBody(ByteString.copyFrom(body));
    }
    for (Entry<String, String> header : headers) {
      if (!HOP_BY_HOP.contains(header.getKey().toLowerCase())) {
        message.addHeaders(
            Header.newBuilder()
                .setName(header.getKey())
                .setValue(ByteString.copyFrom(header.getValue(), StandardCharsets.ISO_8859_1)));
      }
    }
    return message.build();
  }

  void sendTo(HttpServletResponse response) throws IOException {
    response.reset();
    response.setStatus(status);
    for (Entry<String, String> header : headers) {
      response.addHeader(header.getKey(), header.getValue());
    }
    response.setContentLength(body.length);
    response.getOutputStream().write(body);
  }
}
