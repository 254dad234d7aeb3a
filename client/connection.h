// A channel and its stub. For async_client.cc and what it is made of; not
// installed.
#ifndef IDEMPOTENCY_CLIENT_CONNECTION_H_
#define IDEMPOTENCY_CLIENT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"
#include "idempotency/v1/idempotency.grpc.pb.h"

namespace idempotency::internal {

struct Connection {
  Connection(std::shared_ptr<grpc::ChannelInterface> over,
             std::shared_ptr<grpc::ChannelCredentials> with,
             std::uint64_t of_generation = 0)
      : generation(of_generation),
        credentials(std::move(with)),
        channel(std::move(over)),
        stub(v1::IdempotencyService::NewStub(channel)) {}

  // Of two connections of one client, the newer one's is greater.
  const std::uint64_t generation;
  // What the channel was made with where that was TlsFiles::Current().
  const std::shared_ptr<grpc::ChannelCredentials> credentials;
  const std::shared_ptr<grpc::ChannelInterface> channel;
  const std::unique_ptr<v1::IdempotencyService::StubInterface> stub;
};

}  // namespace idempotency::internal

#endif  // IDEMPOTENCY_CLIENT_CONNECTION_H_
