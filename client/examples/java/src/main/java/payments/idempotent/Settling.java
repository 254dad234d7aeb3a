package payments.idempotent;

import idempotency.v1.ClaimRequest;
import idempotency.v1.FinalizeRequest;
import idempotency.v1.IdempotencyServiceGrpc.IdempotencyServiceBlockingStub;
import idempotency.v1.LookupRequest;
import idempotency.v1.Record;
import idempotency.v1.ReleaseRequest;
import idempotency.v1.ReleaseRequest.Disposition;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/** What happens after the servlet: recorded or given back, and the user told. */
final class Settling {
  private final Coordinator coordinator;
  private final Executor background;

  Settling(Coordinator coordinator, Executor background) {
    this.coordinator = coordinator;
    this.background = background;
  }

  /** Goes on for a lease, as what was done must become known; the user need not wait for it. */
  Answer finalizeNow(ClaimRequest claim, Answer answer, Duration lease) {
    FinalizeRequest request =
        FinalizeRequest.newBuilder()
            .setScope(claim.getScope())
            .setKey(claim.getKey())
            .setClaimToken(claim.getClaimToken())
            .setResponse(answer.toMessage())
            .build();
    CompletableFuture<Boolean> counts = new CompletableFuture<>();
    background.execute(
        () -> {
          try {
            coordinator.settle(
                IdempotencyServiceBlockingStub::finalize,
                request,
                lease,
                IdempotentFilter.PATIENCE);
            counts.complete(true);
          } catch (CallFailed failure) {
            if (!failure.isRefused()) {
              release(claim, Disposition.DISPOSITION_OUTCOME_UNKNOWN, IdempotentFilter.PATIENCE);
            }
            counts.complete(!failure.isRefused());
          }
        });
    return patiently(counts, true) ? answer : winner(claim);
  }

  /** What everybody else is told counts, never a response that was refused. */
  private Answer winner(ClaimRequest claim) {
    LookupRequest request =
        LookupRequest.newBuilder().setScope(claim.getScope()).setKey(claim.getKey()).build();
    try {
      Record record =
          coordinator
              .call(IdempotencyServiceBlockingStub::lookup, request, IdempotentFilter.PATIENCE)
              .getRecord();
      if (record.getState() == Record.State.STATE_FINALIZED
          && record.getRequestHash().equals(claim.getRequestHash())) {
        return Answer.replayed(record.getResponse());
      }
    } catch (CallFailed failure) {
      // Nobody knows which response counts: not this one.
    }
    return Answer.problem(409, "superseded");
  }

  CompletableFuture<Boolean> release(ClaimRequest claim, Disposition what, Duration longest) {
    ReleaseRequest request =
        ReleaseRequest.newBuilder()
            .setScope(claim.getScope())
            .setKey(claim.getKey())
            .setClaimToken(claim.getClaimToken())
            .setDisposition(what)
            .build();
    CompletableFuture<Boolean> done = new CompletableFuture<>();
    background.execute(
        () -> {
          try {
            coordinator.settle(
                IdempotencyServiceBlockingStub::release,
                request,
                longest,
                IdempotentFilter.PATIENCE);
          } catch (CallFailed failure) {
            // The record is another's by now, or will be in doubt.
          }
          done.complete(true);
        });
    return done;
  }

  void releaseNow(ClaimRequest claim, Disposition what, Duration longest) {
    patiently(release(claim, what, longest), true);
  }

  private static <T> T patiently(CompletableFuture<T> future, T otherwise) {
    long patienceMs = IdempotentFilter.PATIENCE.toMillis();
    return future
        .copy()
        .completeOnTimeout(otherwise, patienceMs, TimeUnit.MILLISECONDS)
        .join();
  }
}
