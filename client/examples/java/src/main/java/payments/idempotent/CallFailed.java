package payments.idempotent;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** A call that got no answer, with what the error's details say. */
final class CallFailed extends Exception {
  private static final long serialVersionUID = 1;
  private static final Metadata.Key<String> PUSHBACK =
      Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);
  private static final long BACKOFF_FIRST_MS = 50;
  private static final long BACKOFF_MAX_MS = 2000;

  final Status.Code code;
  String reason = "";
  String field = "";
  Duration retryAfter = Duration.ZERO;
  private final String pushback; // as it came; null: none

  CallFailed(StatusRuntimeException error) {
    super(error);
    code = error.getStatus().getCode();
    Metadata trailers = error.getTrailers();
    pushback = trailers == null ? null : trailers.get(PUSHBACK);
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    try {
      for (Any detail : status.getDetailsList()) {
        read(detail);
      }
    } catch (InvalidProtocolBufferException e) {
      addSuppressed(e); // The code is left.
    }
  }

  private void read(Any detail) throws InvalidProtocolBufferException {
    if (detail.is(ErrorInfo.class)) {
      ErrorInfo info = detail.unpack(ErrorInfo.class);
      reason = info.getDomain().equals("idempotency.v1") ? info.getReason() : "";
    } else if (detail.is(RetryInfo.class)) {
      retryAfter = Coordinator.toJava(detail.unpack(RetryInfo.class).getRetryDelay());
    } else if (detail.is(BadRequest.class)) {
      BadRequest bad = detail.unpack(BadRequest.class);
      field = bad.getFieldViolationsCount() > 0 ? bad.getFieldViolations(0).getField() : "";
    }
  }

  boolean isInvalid() {
    return code == Status.Code.INVALID_ARGUMENT;
  }

  /** The service, not a proxy, said that the record is another's. */
  boolean isRefused() {
    return !reason.isEmpty()
        && (code == Status.Code.FAILED_PRECONDITION || code == Status.Code.NOT_FOUND);
  }

  /** Milliseconds until the call may be sent again; negative: it may not. */
  long waitMs(int attempt) {
    if (code != Status.Code.UNAVAILABLE) {
      return -1;
    }
    if (pushback != null) { // Negative or malformed: the server forbids another try.
      return pushback.matches("\\d{1,9}") ? Long.parseLong(pushback) : -1;
    }
    // All of it random: callers that failed together come back apart.
    long most = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << Math.min(attempt, 10));
    return retryAfter.toMillis() + ThreadLocalRandom.current().nextLong(most);
  }
}
