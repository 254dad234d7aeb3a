package payments.idempotent;

import idempotency.v1.IdempotencyServiceGrpc;
import idempotency.v1.IdempotencyServiceGrpc.IdempotencyServiceBlockingStub;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;

/** The coordinator's calls: sent again where that may help. One for the process. */
public final class Coordinator {
  /** One of the stub's methods. */
  interface Method<Q, R> extends BiFunction<IdempotencyServiceBlockingStub, Q, R> {}

  private final IdempotencyServiceBlockingStub stub;

  public Coordinator(String target) {
    stub =
        IdempotencyServiceGrpc.newBlockingStub(
            Grpc.newChannelBuilder(target, InsecureChannelCredentials.create()).build());
  }

  /**
   * Sends the request, the same one each time, until it is answered, that cannot help any more, or
   * the wait would be longer than the caller's patience.
   */
  <Q, R> R call(Method<Q, R> method, Q request, Duration patience) throws CallFailed {
    long deadline = System.nanoTime() + patience.toNanos();
    for (int attempt = 0; ; attempt++) {
      long left = deadline - System.nanoTime();
      try {
        return method.apply(stub.withDeadlineAfter(left, TimeUnit.NANOSECONDS), request);
      } catch (StatusRuntimeException error) {
        CallFailed failure = new CallFailed(error);
        long waitMs = failure.waitMs(attempt);
        if (waitMs < 0 || System.nanoTime() + waitMs * 1_000_000 >= deadline) {
          throw failure;
        }
        sleep(waitMs);
      }
    }
  }

  /**
   * For what must become known, however long it takes: the call again and again, unless the service
   * decides against it.
   */
  <Q, R> R settle(Method<Q, R> method, Q request, Duration longest, Duration patience)
      throws CallFailed {
    long deadline = System.nanoTime() + longest.toNanos();
    while (true) {
      try {
        return call(method, request, patience);
      } catch (CallFailed failure) {
        if (failure.isRefused() || failure.isInvalid() || System.nanoTime() > deadline) {
          throw failure;
        }
        sleep(ThreadLocalRandom.current().nextLong(250, 500));
      }
    }
  }

  private static void sleep(long ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt(); // The next call ends with CANCELLED.
    }
  }

  static Duration toJava(com.google.protobuf.Duration duration) {
    return Duration.ofSeconds(duration.getSeconds(), duration.getNanos());
  }

  static com.google.protobuf.Duration toProto(Duration duration) {
    return com.google.protobuf.Duration.newBuilder()
        .setSeconds(duration.getSeconds())
        .setNanos(duration.getNano())
        .build();
  }
}
