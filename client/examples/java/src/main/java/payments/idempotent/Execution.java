package payments.idempotent;

import idempotency.v1.ClaimRequest;
import idempotency.v1.ClaimResponse;
import idempotency.v1.Claimed;
import idempotency.v1.IdempotencyServiceGrpc.IdempotencyServiceBlockingStub;
import jakarta.servlet.ServletRequest;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** What an attempt was granted, for its handler. */
public final class Execution {
  /** A handler that hangs does not hold its key for ever. */
  private static final int LEASES_MAX = 10;

  static final String ATTRIBUTE = Execution.class.getName();

  final Duration lease;
  private final CountDownLatch done = new CountDownLatch(1); // the handler has ended
  private final Claimed claimed;
  private volatile long endsNanos;

  /** The lease counts from the sending, so that it never ends after the coordinator's. */
  Execution(Claimed claimed, long sentNanos) {
    this.claimed = claimed;
    lease = Coordinator.toJava(claimed.getLease());
    extend(claimed, sentNanos);
  }

  public static Execution of(ServletRequest request) {
    return (Execution) request.getAttribute(ATTRIBUTE);
  }

  /** For the payment channel, as its idempotency key. */
  public String downstreamKey() {
    return claimed.getDownstreamKey();
  }

  public long fencingToken() {
    return claimed.getFencingToken();
  }

  /** False once the claim may be another's: ask before each step that cannot be undone. */
  public boolean permitted() {
    return System.nanoTime() - endsNanos < 0;
  }

  private void extend(Claimed renewed, long sentNanos) {
    endsNanos = sentNanos + Coordinator.toJava(renewed.getLease()).toNanos();
  }

  void end() {
    done.countDown();
  }

  /** Keeps the claim until end(). */
  void renew(Coordinator coordinator, ClaimRequest claim) {
    ClaimRequest renewal = // With a fencing token it never acquires: a lost claim stays lost.
        claim.toBuilder().setRenewFencingToken(fencingToken()).build();
    Duration third = lease.dividedBy(3);
    try {
      for (int i = 0; i < 3 * LEASES_MAX; i++) {
        if (done.await(third.toMillis(), TimeUnit.MILLISECONDS)) {
          return;
        }
        long sentNanos = System.nanoTime();
        try {
          ClaimResponse reply =
              coordinator.call(IdempotencyServiceBlockingStub::claim, renewal, third);
          if (reply.hasClaimed()) {
            extend(reply.getClaimed(), sentNanos);
          }
        } catch (CallFailed failure) {
          if (failure.isRefused()) {
            endsNanos = sentNanos;
            return;
          }
        }
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
