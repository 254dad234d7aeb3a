// Package idempotent makes POST and PATCH of any net/http handler idempotent.
//
//	client, err := idempotent.Connect("127.0.0.1:50051")
//	once := idempotent.Middleware{Client: client, Scope: "payments", Policy: "payment"}
//	http.Handle("/payments", once.Wrap(handler))
//
// The handler's context is cancelled when the claim is lost, and not when the
// user hangs up. A handler that panics leaves the outcome unknown, and the next
// attempt is told.
package idempotent

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "payments/idempotencyv1"
)

const patience = 3 * time.Second // that a user waits for the coordinator

// Middleware may be used for many handlers; each operation has its own scope.
type Middleware struct {
	Client        pb.IdempotencyServiceClient
	Scope, Policy string
	Lease         *durationpb.Duration // nil: the policy's
}

// Wrap puts the middleware before a handler.
func (m Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost && r.Method != http.MethodPatch {
			next.ServeHTTP(w, r)
			return
		}
		m.answer(next, r).sendTo(w)
	})
}

func (m Middleware) answer(next http.Handler, r *http.Request) *response {
	key, wrong := parseKey(r.Header.Values("Idempotency-Key"))
	body, err := io.ReadAll(r.Body)
	if wrong != "" || err != nil {
		return problem(http.StatusBadRequest, cmp.Or(wrong, "body-incomplete"), nil)
	}
	// One token for this attempt, the same on every call and every retry: the
	// coordinator knows the sender of a call whose reply was lost. The hash is
	// of what the user sent, before anything parses it.
	claim := &pb.ClaimRequest{
		Scope: m.Scope, Key: key, ClaimToken: uuid.NewString(), Policy: m.Policy, Lease: m.Lease,
		RequestHash: RequestHash([]byte(r.Method), []byte(r.RequestURI),
			[]byte(r.Header.Get("Content-Type")), body)}
	ctx := context.WithoutCancel(r.Context()) // A user may hang up, the work goes on.
	sentAt := time.Now()
	reply, failed := call(ctx, m.Client.Claim, claim, patience)
	if failed != nil && failed.code == codes.InvalidArgument {
		return unacceptable(failed)
	}
	if failed != nil {
		// It may have been granted all the same, and nothing was done.
		go m.release(claim, pb.ReleaseRequest_DISPOSITION_NOT_EXECUTED, patience)
		return problem(http.StatusServiceUnavailable, "unavailable", failed)
	}
	switch outcome := reply.GetOutcome().(type) {
	case *pb.ClaimResponse_Claimed:
		r = r.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return m.execute(next, r, claim, outcome.Claimed, sentAt)
	case *pb.ClaimResponse_Replay:
		return replayed(outcome.Replay.GetResponse())
	case *pb.ClaimResponse_InProgress:
		wait := outcome.InProgress.GetRetryAfter().AsDuration()
		return problem(http.StatusConflict, "in-progress", nil).comeBackAfter(wait)
	case *pb.ClaimResponse_Mismatch:
		return problem(http.StatusUnprocessableEntity, "key-reused", nil)
	case *pb.ClaimResponse_InDoubt: // somebody has to ask the payment channel first
		return problem(http.StatusConflict, "in-doubt", nil)
	}
	// A newer server says what this program does not know: never execute.
	go m.release(claim, pb.ReleaseRequest_DISPOSITION_NOT_EXECUTED, patience)
	return problem(http.StatusServiceUnavailable, "unavailable", nil)
}

func (m Middleware) execute(
	next http.Handler, r *http.Request, claim *pb.ClaimRequest, claimed *pb.Claimed, sentAt time.Time,
) *response {
	execution, ctx, cancel := newExecution(r.Context(), claimed, sentAt)
	go execution.renew(ctx, cancel, m.Client, claim) // for as long as the handler runs
	answer, whole := run(next, r.WithContext(ctx))
	cancel()
	if !whole { // It panicked: money may have moved.
		m.release(claim, pb.ReleaseRequest_DISPOSITION_OUTCOME_UNKNOWN, execution.lease)
		return problem(http.StatusInternalServerError, "outcome-unknown", nil)
	}
	if execution.NothingHappened {
		m.release(claim, pb.ReleaseRequest_DISPOSITION_NOT_EXECUTED, execution.lease)
		return answer
	}
	request := &pb.FinalizeRequest{Scope: claim.Scope, Key: claim.Key,
		ClaimToken: claim.ClaimToken, Response: answer.toMessage()}
	refused := make(chan bool, 1)
	go func() { // for a lease, since what was done must become known
		failed := settle(m.Client.Finalize, request, execution.lease)
		if failed != nil && !failed.refused() {
			m.release(claim, pb.ReleaseRequest_DISPOSITION_OUTCOME_UNKNOWN, patience)
		}
		refused <- failed.refused()
	}()
	select {
	case lost := <-refused:
		if lost {
			return m.winner(claim)
		}
	case <-time.After(patience): // The user need not wait for it.
	}
	return answer
}

// winner: what everybody else is told counts, never a response that was refused.
func (m Middleware) winner(claim *pb.ClaimRequest) *response {
	request := &pb.LookupRequest{Scope: claim.Scope, Key: claim.Key}
	reply, _ := call(context.Background(), m.Client.Lookup, request, patience)
	record := reply.GetRecord()
	if record.GetState() == pb.Record_STATE_FINALIZED &&
		bytes.Equal(record.GetRequestHash(), claim.RequestHash) {
		return replayed(record.GetResponse())
	}
	return problem(http.StatusConflict, "superseded", nil)
}

// release has a user wait no longer than patience; the sending goes on.
func (m Middleware) release(
	claim *pb.ClaimRequest, what pb.ReleaseRequest_Disposition, longest time.Duration,
) {
	done := make(chan *failure, 1)
	request := &pb.ReleaseRequest{Scope: claim.Scope, Key: claim.Key,
		ClaimToken: claim.ClaimToken, Disposition: what}
	go func() { done <- settle(m.Client.Release, request, longest) }()
	select {
	case <-done:
	case <-time.After(patience):
	}
}
