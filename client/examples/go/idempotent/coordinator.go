package idempotent

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "payments/idempotencyv1"
)

const (
	backoffFirst = 50 * time.Millisecond
	backoffMax   = 2 * time.Second
)

// Connect makes the one connection of the process.
func Connect(target string) (pb.IdempotencyServiceClient, error) {
	// After an outage gRPC would wait up to two minutes before it connects.
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = time.Second
	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect}))
	return pb.NewIdempotencyServiceClient(connection), err
}

// failure is a call that got no answer, with what the error's details say.
type failure struct {
	code          codes.Code
	reason, field string
	retryAfter    time.Duration
	pushback      []string // the trailer, as it came
}

func newFailure(err error, trailer metadata.MD) *failure {
	problem := status.Convert(err)
	f := &failure{code: problem.Code(), pushback: trailer.Get("grpc-retry-pushback-ms")}
	for _, detail := range problem.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == "idempotency.v1" {
				f.reason = detail.GetReason()
			}
		case *errdetails.RetryInfo:
			f.retryAfter = detail.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			if violations := detail.GetFieldViolations(); len(violations) > 0 {
				f.field = violations[0].GetField()
			}
		}
	}
	return f
}

// refused: the service, not a proxy, said that the record is another's.
func (f *failure) refused() bool {
	return f != nil && f.reason != "" &&
		(f.code == codes.FailedPrecondition || f.code == codes.NotFound)
}

// wait is how long to wait before the call is sent again; false: it may not be.
func (f *failure) wait(attempt int) (time.Duration, bool) {
	if f.code != codes.Unavailable {
		return 0, false
	}
	if len(f.pushback) > 0 {
		ms, err := strconv.ParseInt(f.pushback[0], 10, 32)
		// Negative or malformed: the server forbids another try.
		return time.Duration(ms) * time.Millisecond, err == nil && ms >= 0
	}
	// All of it random: callers that failed together come back apart.
	most := min(backoffMax, backoffFirst<<min(attempt, 10))
	return f.retryAfter + rand.N(most), true
}

type method[Q, R proto.Message] func(context.Context, Q, ...grpc.CallOption) (R, error)

// call sends the request, the same one each time, until it is answered, that
// cannot help any more, or the wait would be longer than the caller's patience.
func call[Q, R proto.Message](
	ctx context.Context, send method[Q, R], request Q, patience time.Duration,
) (R, *failure) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	deadline, _ := ctx.Deadline()
	for attempt := 0; ; attempt++ {
		var trailer metadata.MD
		reply, err := send(ctx, request, grpc.Trailer(&trailer))
		if err == nil {
			return reply, nil
		}
		failed := newFailure(err, trailer)
		wait, again := failed.wait(attempt)
		if !again || wait >= time.Until(deadline) {
			return reply, failed
		}
		time.Sleep(wait)
	}
}

// settle is for what must become known, however long it takes: the call again
// and again, unless the service decides against it.
func settle[Q, R proto.Message](send method[Q, R], request Q, longest time.Duration) *failure {
	deadline := time.Now().Add(longest)
	for {
		_, failed := call(context.Background(), send, request, patience)
		if failed == nil || failed.refused() || failed.code == codes.InvalidArgument ||
			time.Now().After(deadline) {
			return failed
		}
		time.Sleep(250*time.Millisecond + rand.N(250*time.Millisecond))
	}
}
