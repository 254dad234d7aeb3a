package idempotent

import (
	"context"
	"log"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

	pb "payments/idempotencyv1"
)

// A handler that hangs does not hold its key for ever.
const leasesMax = 10

// Execution is what an attempt was granted, for its handler.
type Execution struct {
	DownstreamKey   string // for the payment channel, as its idempotency key
	FencingToken    int64
	NothingHappened bool // set by a handler that did nothing: the key is free again

	lease time.Duration
	ends  time.Time
}

type contextKey struct{}

// From gives the handler its Execution.
func From(ctx context.Context) *Execution { return ctx.Value(contextKey{}).(*Execution) }

func newExecution(
	ctx context.Context, claimed *pb.Claimed, sentAt time.Time,
) (*Execution, context.Context, context.CancelFunc) {
	lease := claimed.GetLease().AsDuration()
	execution := &Execution{DownstreamKey: claimed.GetDownstreamKey(),
		FencingToken: claimed.GetFencingToken(), lease: lease, ends: sentAt.Add(lease)}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, contextKey{}, execution))
	return execution, ctx, cancel
}

// renew keeps the claim until ctx ends, and ends ctx when the claim is lost.
func (e *Execution) renew(
	ctx context.Context, lost context.CancelFunc, client pb.IdempotencyServiceClient,
	claim *pb.ClaimRequest,
) {
	renewal := proto.CloneOf(claim)
	renewal.RenewFencingToken = e.FencingToken // With this it never acquires.
	third := e.lease / 3
	for range 3 * leasesMax {
		select {
		case <-ctx.Done():
			return
		case <-time.After(third):
		}
		sentAt := time.Now()
		reply, failed := call(ctx, client.Claim, renewal, third)
		if claimed := reply.GetClaimed(); claimed != nil {
			e.ends = sentAt.Add(claimed.GetLease().AsDuration())
		}
		if failed.refused() || time.Now().After(e.ends) {
			break
		}
	}
	lost()
}

// run gathers the handler's response; false if it panicked.
func run(next http.Handler, r *http.Request) (answer *response, whole bool) {
	answer = &response{header: http.Header{}}
	defer func() {
		if cause := recover(); cause != nil {
			log.Printf("outcome unknown: %v", cause)
			answer, whole = nil, false
		}
	}()
	next.ServeHTTP(answer, r)
	answer.WriteHeader(http.StatusOK)
	return answer, true
}
