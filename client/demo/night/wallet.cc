#include "client/demo/night/wallet.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"

namespace idempotency::night {
namespace {

// Leaves the caller without an answer until it gives up or is gone.
class NoAnswer final : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

// Answers later.
class LateAnswer final : public grpc::ServerUnaryReactor {
 public:
  explicit LateAnswer(std::chrono::milliseconds after) {
    alarm_.Set(std::chrono::system_clock::now() + after,
               [this](bool /*in_time*/) { Finish(grpc::Status::OK); });
  }
  // Who has gone need not be waited for.
  void OnCancel() override { alarm_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  grpc::Alarm alarm_;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// Enough of it to tell it from another.
std::string Shown(const std::string& idempotency_key) {
  if (idempotency_key.empty()) return "no key";
  return absl::StrCat("key ", idempotency_key.substr(0, 8));
}

}  // namespace

WalletService::WalletService(std::unique_ptr<Ledger> ledger,
                             const Options& options, const Timeline& timeline)
    : options_(options),
      timeline_(timeline),
      ledger_(std::move(ledger)),
      to_be_lost_(options.unanswered) {}

grpc::ServerUnaryReactor* WalletService::Charge(
    grpc::CallbackServerContext* context, const ChargeRequest* request,
    LedgerEntry* response) {
  absl::StatusOr<LedgerEntry> entry;
  bool answered = false;
  {
    absl::MutexLock lock(&mutex_);
    entry = ChargeOnce(*request);
    answered = to_be_lost_ <= 0;
    if (!answered) --to_be_lost_;
  }
  if (!entry.ok()) {
    timeline_.Say(absl::StrCat("cannot charge: ", entry.status().ToString()));
    return Answer(context,
                  {grpc::StatusCode::INTERNAL, entry.status().ToString()});
  }
  timeline_.Say(absl::StrCat(
      "charges ", entry->amount(), " (", Shown(request->idempotency_key()),
      "): ", entry->id(), answered ? "" : "; its answer gets lost"));
  if (!answered) return new NoAnswer;
  *response = *std::move(entry);
  if (options_.answer_after.count() > 0) {
    return new LateAnswer(options_.answer_after);
  }
  return Answer(context, grpc::Status::OK);
}

absl::StatusOr<LedgerEntry> WalletService::ChargeOnce(
    const ChargeRequest& request) {
  if (!request.idempotency_key().empty() && !options_.forgetful) {
    if (auto earlier = ledger_->Find(request.idempotency_key())) {
      return *std::move(earlier);
    }
  }
  return ledger_->Append(request);
}

grpc::ServerUnaryReactor* WalletService::Find(
    grpc::CallbackServerContext* context, const FindRequest* request,
    FindResponse* response) {
  std::optional<LedgerEntry> entry;
  if (!options_.forgetful) {
    absl::MutexLock lock(&mutex_);
    entry = ledger_->Find(request->idempotency_key());
  }
  timeline_.Say(absl::StrCat("is asked about ",
                             Shown(request->idempotency_key()), ": ",
                             entry ? entry->id() : "no charge"));
  if (entry) *response->mutable_entry() = *std::move(entry);
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* WalletService::List(
    grpc::CallbackServerContext* context, const ListRequest* /*request*/,
    ListResponse* response) {
  {
    absl::MutexLock lock(&mutex_);
    response->mutable_entries()->Add(ledger_->entries().begin(),
                                     ledger_->entries().end());
  }
  return Answer(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* WalletService::LoseAnswers(
    grpc::CallbackServerContext* context, const LoseAnswersRequest* request,
    LoseAnswersResponse* /*response*/) {
  {
    absl::MutexLock lock(&mutex_);
    to_be_lost_ = request->count();
  }
  return Answer(context, grpc::Status::OK);
}

}  // namespace idempotency::night
