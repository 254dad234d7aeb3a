#include "client/http/middleware.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/http/fingerprint.h"
#include "client/http/idempotency_key.h"
#include "client/http/problem.h"
#include "client/http/recorded_headers.h"
#include "client/request_hash.h"
#include "client/status.h"

namespace idempotency {
namespace {

using Options = std::shared_ptr<const HttpMiddlewareOptions>;

constexpr char kHeadersOmitted[] = "Idempotent-Headers-Omitted";
// Where the coordinator does not say when to come back.
constexpr std::chrono::seconds kRetryAfterDefault{1};

constexpr std::string_view kDigest = "digest-";
// A scope has at most 128 bytes, "/", that and 64 hexadecimal digits included.
constexpr std::size_t kScopeWithCallerMax = 128 - 1 - kDigest.size() - 64;

bool IsSafe(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS" ||
         method == "TRACE";
}

bool HasBody(int status) {
  return status != 204 && status != 205 && status != 304;
}

bool LacksItsBody(const v1::Response& response) {
  return response.body_omitted() && HasBody(response.status_code());
}

void AddHeader(v1::Response& response, std::string_view name,
               std::string_view value) {
  v1::Header* const header = response.add_headers();
  header->set_name(name.data(), name.size());
  header->set_value(value.data(), value.size());
}

void PrintNotice(const HttpNotice& notice) {
  const char* what = "?";
  switch (notice.kind) {
    case HttpNotice::Kind::kRanUnguarded:
      what = "a request ran unguarded";
      break;
    case HttpNotice::Kind::kUnavailable:
      what = "a request was refused, the coordinator cannot be asked";
      break;
    case HttpNotice::Kind::kMisconfigured:
      what = "the coordinator does not take a request of this route";
      break;
    case HttpNotice::Kind::kBodyNotKept:
      what = "a response was recorded without its body";
      break;
    case HttpNotice::Kind::kOutcomeUnknown:
      what = "the outcome of a request is unknown";
      break;
    case HttpNotice::Kind::kSuperseded:
      what = "a request ran whose key another attempt had taken over";
      break;
    case HttpNotice::Kind::kNotRecorded:
      what = "a response was answered before it was recorded";
      break;
  }
  // What a handler threw may quote what is nobody else's business.
  const bool is_handlers = notice.kind == HttpNotice::Kind::kOutcomeUnknown &&
                           !IsServiceError(notice.why);
  const std::string why = is_handlers
                              ? absl::StatusCodeToString(notice.why.code())
                              : notice.why.ToString();
  std::fprintf(stderr, "idempotency: scope %s: %s: %s\n", notice.scope.c_str(),
               what, why.c_str());
}

// What was done is answered and recorded whatever becomes of the telling.
void Notify(const HttpMiddlewareOptions& options, const HttpNotice& notice) {
  try {
    options.notice ? options.notice(notice) : PrintNotice(notice);
  } catch (...) {
    std::fprintf(stderr, "idempotency: scope %s: the notice function threw\n",
                 notice.scope.c_str());
  }
}

// The caller's name as one segment of a scope. What is no segment, or could be
// taken for a digest, becomes one.
std::string SegmentOf(const std::string& caller) {
  constexpr std::size_t kSegmentMax = 64;
  const bool is_segment =
      caller.size() <= kSegmentMax && !caller.starts_with(kDigest) &&
      std::all_of(caller.begin(), caller.end(), [](unsigned char c) {
        return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
      });
  if (is_segment) return caller;
  return std::string(kDigest).append(
      absl::BytesToHexString(RequestHashOfParts({"caller", caller})));
}

absl::StatusOr<std::string> ScopeOf(const HttpRequest& request,
                                    const HttpRoute& route) {
  if (!route.caller) return route.scope;
  // Not only once somebody comes whose name is long.
  if (route.scope.size() > kScopeWithCallerMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the scope of a route with callers has at most ",
                     kScopeWithCallerMax, " bytes"));
  }
  std::string caller;
  try {
    caller = route.caller(request);
  } catch (...) {
    return absl::UnknownError("the route's function `caller` threw");
  }
  if (caller.empty()) return route.scope;
  return absl::StrCat(route.scope, "/", SegmentOf(caller));
}

struct Unguarded {};
// What a request is by itself, before the coordinator is asked.
using Admission = std::variant<Unguarded, Operation, v1::Response>;

Admission Admit(const HttpRequest& request, const HttpRoute& route,
                const HttpMiddlewareOptions& options) {
  if (!IsGuarded(request, route)) return Unguarded();
  const auto key = ParseIdempotencyKey(FieldValues(request, route.key_header));
  if (!key.ok()) {
    return MakeProblem(kKeyMalformed, options.problem_type_prefix,
                       absl::StrCat(route.key_header, ": ",
                                    std::string(key.status().message())));
  }
  if (!key->has_value()) {
    return MakeProblem(
        kKeyMissing, options.problem_type_prefix,
        absl::StrCat("Send ", route.key_header,
                     " with a key of your own, the same for each retry"));
  }
  absl::StatusOr<std::string> scope = ScopeOf(request, route);
  if (!scope.ok()) {
    Notify(options,
           {HttpNotice::Kind::kMisconfigured, route.scope, scope.status()});
    return MakeProblem(kMisconfigured, options.problem_type_prefix);
  }
  return Operation{.scope = *std::move(scope),
                   .key = **key,
                   .request_hash = HashOf(request, route.fingerprint),
                   .policy = route.policy,
                   .owner = route.owner,
                   .lease = route.lease,
                   .max_run_time = route.max_run_time,
                   .wait = route.wait,
                   .claim_timeout = route.claim_timeout,
                   .finalize_timeout = route.finalize_timeout};
}

// One guarded request. What a handler or resolver answers is kept whole for the
// caller while a part of it is recorded. Handler, resolver and result come one
// after the other.
class Exchange {
 public:
  Exchange(Options options, HttpRoute route, std::string scope)
      : options_(std::move(options)),
        route_(std::move(route)),
        scope_(std::move(scope)) {}

  FunctionResult Record(HttpResult result) {
    effect_ = result.effect;
    if (effect_ == HttpEffect::kExecuted) {
      return Executed{Keep(std::move(result.response))};
    }
    answered_ = std::move(result.response);
    if (effect_ == HttpEffect::kNothing) return NothingHappened{};
    return OutcomeUnknown{};
  }

  Resolution Record(Resolution resolution) {
    if (auto* const executed = std::get_if<WasExecuted>(&resolution)) {
      executed->response = Keep(std::move(executed->response));
    }
    return resolution;
  }

  bool MayRunUnguarded(const RunResult& result) const {
    return route_.fail_open && HasNoCoordinator(result);
  }

  v1::Response Conclude(RunResult result) {
    switch (result.outcome) {
      case RunOutcome::kExecuted:
        TellUnlessRecorded(result);
        return *std::move(answered_);
      case RunOutcome::kResolved:
        TellUnlessRecorded(result);
        return Resolved(*std::move(answered_));
      case RunOutcome::kReplayed:
        return Recorded(std::move(result.response));
      case RunOutcome::kWinner:
        Tell(HttpNotice::Kind::kSuperseded,
             absl::FailedPreconditionError(
                 "its response was refused, another attempt's is recorded"));
        return Recorded(std::move(result.response));
      case RunOutcome::kConflict:
        Tell(HttpNotice::Kind::kSuperseded, result.status);
        return Refuse(kSuperseded);
      case RunOutcome::kMismatch:
        return Refuse(kKeyReused);
      case RunOutcome::kInProgress:
        return Refuse(kInProgress, result.retry_after);
      case RunOutcome::kInDoubt:
        return Refuse(kInDoubt);
      case RunOutcome::kNothingHappened:
      case RunOutcome::kUnknown:
        return AnswerUnrecorded(result);
      case RunOutcome::kInvalid:
        Tell(HttpNotice::Kind::kMisconfigured, result.status);
        return Refuse(kMisconfigured);
      case RunOutcome::kUnavailable:
        // The record is there and cannot be read, today or later.
        if (absl::IsDataLoss(result.status)) return AnswerUnrecorded(result);
        Tell(HttpNotice::Kind::kUnavailable, result.status);
        break;
      case RunOutcome::kHungUp:
        break;
    }
    return Refuse(kUnavailable,
                  RetryDelayOf(result.status).value_or(kRetryAfterDefault));
  }

  void Tell(HttpNotice::Kind kind, absl::Status why) const {
    Notify(*options_, {kind, scope_, std::move(why)});
  }

 private:
  v1::Response Refuse(const Problem& problem,
                      std::optional<std::chrono::nanoseconds> retry_after =
                          std::nullopt) const {
    return MakeProblem(problem, options_->problem_type_prefix, "", retry_after);
  }

  // A status of 500 and above may not be recorded by policy.
  void TellUnlessRecorded(const RunResult& result) const {
    if (result.recorded || answered_->status_code() >= 500) return;
    Tell(HttpNotice::Kind::kNotRecorded,
         absl::DeadlineExceededError(
             "the coordinator has not confirmed it in time; it is sent on for "
             "one lease"));
  }

  // Returns what is recorded of it.
  v1::Response Keep(v1::Response response) {
    answered_ = std::move(response);
    const bool too_long = answered_->body().size() > route_.body_bytes_max;
    v1::Response recorded;
    recorded.set_status_code(answered_->status_code());
    recorded.set_headers_omitted(answered_->headers_omitted());
    *recorded.mutable_headers() = answered_->headers();
    KeepRecordedHeaders(route_, recorded);
    if (!too_long && !answered_->body_omitted()) {
      recorded.set_body(answered_->body());
      return recorded;
    }
    recorded.set_body_omitted(true);
    if (HasBody(recorded.status_code())) {
      Tell(HttpNotice::Kind::kBodyNotKept,
           absl::ResourceExhaustedError(
               too_long
                   ? absl::StrCat("more than ", route_.body_bytes_max, " bytes")
                   : "it was not in memory"));
    }
    return recorded;
  }

  v1::Response Recorded(v1::Response response) const {
    const int status = response.status_code();
    // Another program may have recorded what HTTP does not know.
    const bool is_http = status >= 200 && status <= 599;
    if (!is_http || LacksItsBody(response)) return NotKept(status);
    KeepSendableHeaders(route_, response);
    if (!HasBody(status)) response.clear_body();
    AddHeader(response, route_.replayed_header, "true");
    if (response.headers_omitted()) {
      AddHeader(response, kHeadersOmitted, "true");
    }
    response.clear_body_omitted();
    response.clear_headers_omitted();
    return response;
  }

  // The resolver's, which nobody has the rest of.
  v1::Response Resolved(v1::Response response) const {
    if (LacksItsBody(response)) return NotKept(response.status_code());
    response.clear_body_omitted();
    return response;
  }

  v1::Response NotKept(int status) const {
    return MakeProblem(kResponseNotKept, options_->problem_type_prefix,
                       absl::StrCat("It was answered with status ", status));
  }

  // The handler's own answer, unless it gave none or it is not what became of
  // it.
  v1::Response AnswerUnrecorded(const RunResult& result) {
    if (answered_.has_value() && effect_ != HttpEffect::kExecuted) {
      return *std::move(answered_);
    }
    Tell(HttpNotice::Kind::kOutcomeUnknown, result.status);
    return Refuse(kOutcomeUnknown);
  }

  const Options options_;
  const HttpRoute route_;
  const std::string scope_;
  std::optional<v1::Response> answered_;
  HttpEffect effect_ = HttpEffect::kExecuted;
};

// The answer to come of an asynchronous handler; null is none. Thread-safe.
class PendingAnswer {
 public:
  using Answered = std::function<void(HttpResult*, absl::Status why)>;

  explicit PendingAnswer(Answered answered) : answered_(std::move(answered)) {}
  ~PendingAnswer() {
    Fail(absl::UnknownError("the handler was dropped without an answer"));
  }
  PendingAnswer(const PendingAnswer&) = delete;
  PendingAnswer& operator=(const PendingAnswer&) = delete;

  void Answer(HttpResult result) {
    if (!taken_.exchange(true)) answered_(&result, absl::OkStatus());
  }
  void Fail(absl::Status why) {
    if (!taken_.exchange(true)) answered_(nullptr, std::move(why));
  }

 private:
  const Answered answered_;
  std::atomic<bool> taken_{false};
};

void RunHandler(const AsyncHttpHandler& handler,
                std::shared_ptr<Execution> execution,
                PendingAnswer::Answered answered) {
  const auto pending = std::make_shared<PendingAnswer>(std::move(answered));
  try {
    handler(std::move(execution), [pending](HttpResult result) {
      pending->Answer(std::move(result));
    });
  } catch (const std::exception& error) {
    pending->Fail(absl::UnknownError(absl::StrCat("it threw: ", error.what())));
  } catch (...) {
    pending->Fail(absl::UnknownError("it threw"));
  }
}

void RunUnguarded(const AsyncHttpHandler& handler, const Options& options,
                  const std::string& scope,
                  std::function<void(v1::Response)> done) {
  RunHandler(handler, nullptr,
             [options, scope, done = std::move(done)](HttpResult* result,
                                                      absl::Status why) {
               if (result != nullptr) return done(std::move(result->response));
               Notify(*options, {HttpNotice::Kind::kOutcomeUnknown, scope,
                                 std::move(why)});
               done(MakeProblem(kOutcomeUnknown, options->problem_type_prefix));
             });
}

}  // namespace

bool IsGuarded(const HttpRequest& request, const HttpRoute& route) {
  return !IsSafe(request.method) &&
         (route.required || !FieldValues(request, route.key_header).empty());
}

HttpMiddleware::HttpMiddleware(RunOnce& once, HttpMiddlewareOptions options)
    : once_(once),
      options_(
          std::make_shared<const HttpMiddlewareOptions>(std::move(options))) {}

v1::Response HttpMiddleware::Refuse(const Problem& problem,
                                    std::string_view detail) const {
  return MakeProblem(problem, options_->problem_type_prefix, detail);
}

v1::Response HttpMiddleware::Handle(const HttpRequest& request,
                                    const HttpRoute& route,
                                    const HttpHandler& handler,
                                    const HttpResolver& resolve) {
  Admission admission = Admit(request, route, *options_);
  if (auto* const refused = std::get_if<v1::Response>(&admission)) {
    return std::move(*refused);
  }
  const auto* const operation = std::get_if<Operation>(&admission);
  if (operation == nullptr) return handler(nullptr).response;

  Exchange exchange(options_, route, operation->scope);
  std::function<Resolution(Execution&)> resolver;
  if (resolve) {
    resolver = [&](Execution& execution) {
      return exchange.Record(resolve(execution));
    };
  }
  RunResult result = once_.Run(
      *operation,
      [&](Execution& execution) {
        return exchange.Record(handler(&execution));
      },
      resolver);
  if (exchange.MayRunUnguarded(result)) {
    exchange.Tell(HttpNotice::Kind::kRanUnguarded, result.status);
    return handler(nullptr).response;
  }
  return exchange.Conclude(std::move(result));
}

std::unique_ptr<Running> HttpMiddleware::Start(
    const HttpRequest& request, const HttpRoute& route,
    AsyncHttpHandler handler, std::function<void(v1::Response)> done,
    AsyncResolver resolve) {
  Admission admission = Admit(request, route, *options_);
  if (auto* const refused = std::get_if<v1::Response>(&admission)) {
    done(std::move(*refused));
    return nullptr;
  }
  const auto* const operation = std::get_if<Operation>(&admission);
  if (operation == nullptr) {
    RunUnguarded(handler, options_, route.scope, std::move(done));
    return nullptr;
  }

  const auto exchange =
      std::make_shared<Exchange>(options_, route, operation->scope);
  AsyncResolver resolver;
  if (resolve) {
    resolver = [exchange, resolve = std::move(resolve)](
                   std::shared_ptr<Execution> execution,
                   Completion<Resolution> completion) {
      resolve(std::move(execution),
              Completion<Resolution>([exchange, completion](Resolution answer) {
                completion(exchange->Record(std::move(answer)));
              }));
    };
  }
  return once_.Start(
      *operation,
      [exchange, handler](std::shared_ptr<Execution> execution,
                          Completion<FunctionResult> completion) {
        RunHandler(
            handler, std::move(execution),
            [exchange, completion](HttpResult* result, absl::Status why) {
              if (result == nullptr) {
                return completion(OutcomeUnknown{std::move(why)});
              }
              completion(exchange->Record(std::move(*result)));
            });
      },
      [exchange, handler, options = options_, scope = operation->scope,
       done = std::move(done)](const RunResult& result) {
        if (exchange->MayRunUnguarded(result)) {
          exchange->Tell(HttpNotice::Kind::kRanUnguarded, result.status);
          return RunUnguarded(handler, options, scope, done);
        }
        done(exchange->Conclude(result));
      },
      std::move(resolver));
}

}  // namespace idempotency
