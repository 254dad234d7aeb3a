package main

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"payments/idempotent"
)

// wallet is the other side. An order says what it is to do: slow-MS, throw,
// nothing-happened, decline-402, error-500, long-BYTES, receipts-N; empty:
// charge.
type wallet struct {
	mu    sync.Mutex
	asked map[string]int
}

func (w *wallet) askedFor(account string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[account]
}

// charge gives status and body of the answer.
func (w *wallet) charge(
	ctx context.Context, request payment, order string,
) (int, any) {
	execution := idempotent.From(ctx)
	w.mu.Lock()
	if w.asked == nil {
		w.asked = map[string]int{}
	}
	w.asked[request.Account]++
	w.mu.Unlock()
	what, rest, _ := strings.Cut(order, "-")
	number, _ := strconv.Atoi(rest)
	request.receipts = 2
	request.Payment, request.WalletKey = uuid.NewString(), execution.DownstreamKey
	switch what {
	case "throw":
		panic("the wallet hung up")
	case "nothing":
		execution.NothingHappened = true
		return 503, map[string]string{"error": "the wallet refused to begin"}
	case "slow":
		select {
		case <-time.After(time.Duration(number) * time.Millisecond):
		case <-ctx.Done(): // Before what cannot be undone.
			panic("the claim was lost while the wallet was slow")
		}
	case "decline", "error":
		return number, map[string]string{"error": what}
	case "receipts":
		request.receipts = number
	case "long":
		request.Receipt = strings.Repeat("x", number)
	}
	return 201, request
}
