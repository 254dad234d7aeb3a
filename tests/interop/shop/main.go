// Command shop is a gRPC service that knows nothing of idempotency keys, for
// sidecar.py: interop.Shop/Charge takes and returns a StringValue.
//
//	pay, slow  charges, the latter after a while, and answers with the number
//	           of the charge and all metadata whose name begins "idempotency-"
//	begun      answers how many charges it has begun
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const slow = 2 * time.Second

var begun, charged atomic.Int64

func charge(_ any, ctx context.Context, decode func(any) error,
	_ grpc.UnaryServerInterceptor) (any, error) {
	request := new(wrapperspb.StringValue)
	if err := decode(request); err != nil {
		return nil, err
	}
	if request.Value == "begun" {
		return wrapperspb.String(fmt.Sprint(begun.Load())), nil
	}
	begun.Add(1)
	if request.Value == "slow" {
		time.Sleep(slow)
	}
	lines := []string{}
	received, _ := metadata.FromIncomingContext(ctx)
	for name, values := range received {
		if strings.HasPrefix(name, "idempotency-") {
			lines = append(lines, name+": "+strings.Join(values, ", "))
		}
	}
	sort.Strings(lines)
	return wrapperspb.String(fmt.Sprintf("charge %d\n%s", charged.Add(1),
		strings.Join(lines, "\n"))), nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "interop.Shop",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Charge", Handler: charge}},
	}, struct{}{})
	log.Fatal(server.Serve(listener))
}
