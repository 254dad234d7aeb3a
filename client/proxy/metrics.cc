#include "client/proxy/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace idempotency {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

const char* NameOf(ProxyAnswer answer) {
  switch (answer) {
    case ProxyAnswer::kPassed:
      return "passed";
    case ProxyAnswer::kExecuted:
      return "executed";
    case ProxyAnswer::kUnguarded:
      return "unguarded";
    case ProxyAnswer::kReplayed:
      return "replayed";
    case ProxyAnswer::kRefused:
      return "refused";
    case ProxyAnswer::kFailed:
      break;
  }
  return "failed";
}

}  // namespace

const char* NameOf(HttpNotice::Kind kind) {
  switch (kind) {
    case HttpNotice::Kind::kRanUnguarded:
      return "ran_unguarded";
    case HttpNotice::Kind::kUnavailable:
      return "unavailable";
    case HttpNotice::Kind::kMisconfigured:
      return "misconfigured";
    case HttpNotice::Kind::kBodyNotKept:
      return "body_not_kept";
    case HttpNotice::Kind::kOutcomeUnknown:
      return "outcome_unknown";
    case HttpNotice::Kind::kSuperseded:
      return "superseded";
    case HttpNotice::Kind::kNotRecorded:
      break;
  }
  return "not_recorded";
}

struct ProxyMetrics::Impl {
  prometheus::Registry registry;
  Family<Counter>& requests =
      prometheus::BuildCounter()
          .Name("idempotency_proxy_http_requests_total")
          .Help(
              "HTTP requests by the scope of their route and how they were "
              "answered: passed, executed, replayed, refused, failed, or "
              "unguarded because a route fails open")
          .Register(registry);
  Family<Counter>& notices = prometheus::BuildCounter()
                                 .Name("idempotency_proxy_notices_total")
                                 .Help("What somebody has to know of, by kind")
                                 .Register(registry);
  Family<Counter>& rules =
      prometheus::BuildCounter()
          .Name("idempotency_proxy_rules_total")
          .Help("Contents of the file of rules that were used, or refused")
          .Register(registry);
  Gauge& connections = prometheus::BuildGauge()
                           .Name("idempotency_proxy_connections")
                           .Help("Connections of HTTP callers")
                           .Register(registry)
                           .Add({});
  Gauge& operations = prometheus::BuildGauge()
                          .Name("idempotency_proxy_operations")
                          .Help(
                              "Operations with a key that are under way, "
                              "HTTP and gRPC")
                          .Register(registry)
                          .Add({});
};

ProxyMetrics::ProxyMetrics() : impl_(std::make_unique<Impl>()) {
  // A rate of what has not happened yet is 0 and not missing.
  for (const HttpNotice::Kind kind :
       {HttpNotice::Kind::kRanUnguarded, HttpNotice::Kind::kUnavailable,
        HttpNotice::Kind::kMisconfigured, HttpNotice::Kind::kBodyNotKept,
        HttpNotice::Kind::kOutcomeUnknown, HttpNotice::Kind::kSuperseded,
        HttpNotice::Kind::kNotRecorded}) {
    impl_->notices.Add({{"kind", NameOf(kind)}});
  }
  impl_->rules.Add({{"result", "used"}});
  impl_->rules.Add({{"result", "refused"}});
}
ProxyMetrics::~ProxyMetrics() = default;

void ProxyMetrics::Count(ProxyAnswer answer, const std::string& scope) {
  impl_->requests.Add({{"scope", scope}, {"answer", NameOf(answer)}})
      .Increment();
}

void ProxyMetrics::Count(HttpNotice::Kind kind) {
  impl_->notices.Add({{"kind", NameOf(kind)}}).Increment();
}

void ProxyMetrics::CountRules(bool used) {
  impl_->rules.Add({{"result", used ? "used" : "refused"}}).Increment();
}

std::string ProxyMetrics::Page(std::size_t connections,
                               std::size_t operations) const {
  impl_->connections.Set(static_cast<double>(connections));
  impl_->operations.Set(static_cast<double>(operations));
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace idempotency
