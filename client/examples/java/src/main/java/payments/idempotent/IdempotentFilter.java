package payments.idempotent;

import com.google.protobuf.ByteString;
import idempotency.v1.ClaimRequest;
import idempotency.v1.ClaimResponse;
import idempotency.v1.IdempotencyServiceGrpc.IdempotencyServiceBlockingStub;
import idempotency.v1.ReleaseRequest.Disposition;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Makes POST and PATCH behind it idempotent. A servlet finds its Execution by {@code
 * Execution.of(request)}. It throws NothingHappened when it is certain to have done nothing;
 * whatever else it throws leaves the outcome unknown, and the next attempt is told.
 */
public final class IdempotentFilter extends HttpFilter {
  private static final long serialVersionUID = 1;
  static final Duration PATIENCE = Duration.ofSeconds(3); // of a user, with the coordinator

  private final transient Coordinator coordinator;
  private final ClaimRequest terms; // scope, policy, lease
  private final transient ExecutorService background = Executors.newCachedThreadPool();
  private final transient Settling settling;

  public IdempotentFilter(Coordinator coordinator, ClaimRequest terms) {
    this.coordinator = coordinator;
    this.terms = terms;
    settling = new Settling(coordinator, background);
  }

  @Override
  protected void doFilter(
      HttpServletRequest request, HttpServletResponse response, FilterChain next)
      throws IOException, ServletException {
    if (Set.of("POST", "PATCH").contains(request.getMethod())) {
      answer(request, response, next).sendTo(response);
    } else {
      next.doFilter(request, response);
    }
  }

  private Answer answer(HttpServletRequest request, HttpServletResponse response, FilterChain next)
      throws IOException {
    String key = Key.of(request);
    if (key == null) {
      String given = request.getHeader("Idempotency-Key");
      return Answer.problem(400, given == null ? "key-missing" : "key-malformed");
    }
    BodyKept kept = new BodyKept(request);
    // One token for this attempt, the same on every call and every retry: the coordinator knows
    // the sender of a call whose reply was lost.
    ClaimRequest claim =
        terms.toBuilder()
            .setKey(key)
            .setRequestHash(ByteString.copyFrom(kept.hash()))
            .setClaimToken(UUID.randomUUID().toString())
            .build();
    long sent = System.nanoTime();
    ClaimResponse reply;
    try {
      reply = coordinator.call(IdempotencyServiceBlockingStub::claim, claim, PATIENCE);
    } catch (CallFailed failure) {
      if (failure.isInvalid()) {
        return Answer.unacceptable(failure);
      }
      // It may have been granted all the same, and nothing was done.
      settling.release(claim, Disposition.DISPOSITION_NOT_EXECUTED, PATIENCE);
      return Answer.problem(503, "unavailable", failure);
    }
    return switch (reply.getOutcomeCase()) {
      case CLAIMED -> execute(kept, response, next, claim, new Execution(reply.getClaimed(), sent));
      case REPLAY -> Answer.replayed(reply.getReplay().getResponse());
      case IN_PROGRESS -> Answer.problem(
          409, "in-progress", Coordinator.toJava(reply.getInProgress().getRetryAfter()));
      case MISMATCH -> Answer.problem(422, "key-reused");
      // Somebody has to ask the payment channel first.
      case IN_DOUBT -> Answer.problem(409, "in-doubt");
      // A newer server's, which this program does not know: never execute.
      case OUTCOME_NOT_SET -> {
        settling.release(claim, Disposition.DISPOSITION_NOT_EXECUTED, PATIENCE);
        yield Answer.problem(503, "unavailable");
      }
    };
  }

  private Answer execute(
      BodyKept request, HttpServletResponse response, FilterChain next, ClaimRequest claim,
      Execution execution) {
    request.setAttribute(Execution.ATTRIBUTE, execution);
    background.execute(() -> execution.renew(coordinator, claim)); // while the servlet runs
    Gathered gathered = new Gathered(response);
    try {
      next.doFilter(request, gathered);
    } catch (NothingHappened e) {
      settling.releaseNow(claim, Disposition.DISPOSITION_NOT_EXECUTED, execution.lease);
      return Answer.problem(503, "nothing-happened");
    } catch (Exception | Error e) { // Money may have moved.
      settling.releaseNow(claim, Disposition.DISPOSITION_OUTCOME_UNKNOWN, execution.lease);
      return Answer.problem(500, "outcome-unknown");
    } finally {
      execution.end();
    }
    return settling.finalizeNow(claim, gathered.answer(), execution.lease);
  }
}
