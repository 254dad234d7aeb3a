// What the RPC layer is built from. Free of gRPC, so that whoever builds the
// program need not know it.
#ifndef IDEMPOTENCY_SERVER_RPC_OPTIONS_H_
#define IDEMPOTENCY_SERVER_RPC_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "server/core/clock.h"
#include "server/core/engine.h"
#include "server/core/limits.h"
#include "server/core/log.h"
#include "server/core/metrics.h"
#include "server/core/policies.h"
#include "server/core/uuid.h"
#include "server/rpc/certificate_files.h"
#include "server/rpc/random.h"

namespace idempotency {

struct ServiceOptions {
  // Longer bodies are left out of the record; at most kBodyBytesMax.
  std::size_t body_bytes_max = limits::kBodyBytesDefault;
  // The longest time a call may take, beside what it asks to wait.
  std::chrono::milliseconds deadline_max = limits::kDeadlineDefault;
  // The memory of answers with recorded responses, until their callers have
  // read them; at least kReplyBytesMaxLeast.
  std::size_t reply_bytes_max = limits::kReplyBytesMax;
  // How long a stream of Bulk lives, spread by a tenth; zero: for ever.
  std::chrono::milliseconds bulk_age_max{0};
  // Instead of the one that the database keeps.
  std::optional<Uuid> downstream_namespace{};
};

// What the service uses; all of it must outlive the service.
struct ServiceParts {
  Engine& engine;
  const FleetRulesCache& rules;
  const Clock& clock;
  Log& log;  // is told of calls that failed because something is broken
  Metrics& metrics;
  RandomSource random = SystemRandom;
};

struct ServerOptions {
  // host:port, [IPv6]:port or unix:path; port 0: any free one.
  std::string listen = "127.0.0.1:50051";
  // None given: not encrypted. Who may listen where is for the caller to
  // decide.
  CertificateFiles tls{};
  // How long a client keeps one connection, spread by a tenth, so that load
  // moves to new replicas; zero: for ever.
  std::chrono::milliseconds connection_age_max{0};
  // Whether tools may ask what services there are.
  bool reflection = true;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_RPC_OPTIONS_H_
