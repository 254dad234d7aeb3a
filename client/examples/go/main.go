// A payment service: POST /payments, once for each Idempotency-Key.
//
//	IDEMPOTENCY_PROTO=../../../proto go generate   # the stubs; needs protoc
//	go run . --listen 127.0.0.1:8080 --coordinator 127.0.0.1:50051
//
// The wallet is played, so that a test can say what it does: header X-Wallet.
package main

//go:generate go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//go:generate protoc -I $IDEMPOTENCY_PROTO --plugin=bin/protoc-gen-go --plugin=bin/protoc-gen-go-grpc --go_out=. --go_opt=module=payments,Midempotency/v1/idempotency.proto=payments/idempotencyv1 --go-grpc_out=. --go-grpc_opt=module=payments,Midempotency/v1/idempotency.proto=payments/idempotencyv1 idempotency/v1/idempotency.proto

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"payments/idempotent"
)

type payment struct {
	Account   string `json:"account"`
	Amount    int64  `json:"amount"`
	Payment   string `json:"payment"`
	WalletKey string `json:"wallet_key"`
	Receipt   string `json:"receipt,omitempty"`
	receipts  int
}

// payments is the handler, which knows nothing of claims.
type payments struct{ wallet wallet }

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	status := http.StatusOK
	if r.Method == http.MethodGet {
		answer = map[string]int{"asked": p.wallet.askedFor(r.FormValue("account"))}
	} else {
		var request payment
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		status, answer = p.wallet.charge(r.Context(), request, r.Header.Get("X-Wallet"))
	}
	w.Header().Set("Content-Type", "application/json")
	if paid, ok := answer.(payment); ok {
		for n := range paid.receipts { // Some of one name, to be replayed as they are.
			w.Header().Add("X-Receipt", fmt.Sprint(n))
		}
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address")
	coordinator := flag.String("coordinator", "127.0.0.1:50051", "address")
	leaseMs := flag.Int("lease_ms", 0, "lease; 0: the policy's")
	vectors := flag.String("check_vectors", "", "check this file's examples and end")
	flag.Parse()
	if *vectors != "" {
		count, err := checkVectors(*vectors)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(count, "vectors")
		return
	}
	client, err := idempotent.Connect(*coordinator)
	if err != nil {
		log.Fatal(err)
	}
	once := idempotent.Middleware{Client: client, Scope: "payments", Policy: "payment"}
	if *leaseMs > 0 {
		once.Lease = durationpb.New(time.Duration(*leaseMs) * time.Millisecond)
	}
	http.Handle("/payments", once.Wrap(&payments{}))
	log.Fatal(http.ListenAndServe(*listen, nil))
}
