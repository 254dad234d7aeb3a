#include "tests/integration/load.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace idempotency {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPause{20};
// What a busy machine may add to a deadline.
constexpr milliseconds kDeadlineSlack{1000};

}  // namespace

Load::Load(std::vector<std::shared_ptr<grpc::Channel>> channels,
           Options options)
    : options_(options) {
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back(
        [this,
         channel = channels[static_cast<std::size_t>(i) % channels.size()]] {
          Run(channel);
        });
  }
}

Load::~Load() { Stop(); }

void Load::Stop() {
  stopping_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool Load::WaitForAcknowledged(std::size_t more, milliseconds timeout) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  const std::size_t wanted = acknowledged_.size() + more;
  return changed_.wait_for(lock, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return acknowledged_.size() >= wanted;
  });
}

std::vector<Recorded> Load::acknowledged() const {
  MutexLock lock(mutex_);
  return acknowledged_;
}

std::vector<Recorded> Load::open() const {
  MutexLock lock(mutex_);
  return open_;
}

std::vector<std::string> Load::wrong() const {
  MutexLock lock(mutex_);
  return wrong_;
}

void Load::NoteWrong(const std::string& what) {
  MutexLock lock(mutex_);
  wrong_.push_back(what);
}

template <typename Request>
auto Load::SendUntilAnswered(Stub& stub, const Request& request, bool& left) {
  for (int attempt = 1;; ++attempt) {
    const steady_clock::time_point sent = steady_clock::now();
    auto response = Send(stub, request, options_.timeout);
    if (steady_clock::now() - sent > options_.timeout + kDeadlineSlack) {
      NoteWrong("a call outlived its deadline");
    }
    if (response.ok() || !IsUnserved(response.status())) return response;
    if (options_.leaves_a_draining_server &&
        Decided(response.status()) == "DRAINING") {
      left = true;
      return response;
    }
    ++unserved_;
    if (attempt >= options_.attempts || stopping_) return response;
    std::this_thread::sleep_for(kPause);
  }
}

void Load::Run(std::shared_ptr<grpc::Channel> channel) {
  const auto stub = v1::IdempotencyService::NewStub(std::move(channel));
  bool left = false;
  while (!stopping_ && !left) RunOne(*stub, left);
}

void Load::RunOne(Stub& stub, bool& left) {
  const v1::ClaimRequest claim = ClaimOf(RandomKey());
  const auto claimed = SendUntilAnswered(stub, claim, left);
  if (!claimed.ok() && IsUnserved(claimed.status())) return;
  if (!claimed.ok() || !claimed->has_claimed()) {
    NoteWrong(absl::StrCat("a new key was answered ", Decided(claimed)));
    return;
  }
  const v1::FinalizeRequest finalize = FinalizeOf(claim, 201, claim.key());
  const auto recorded = SendUntilAnswered(stub, finalize, left);
  if (!recorded.ok() && !IsUnserved(recorded.status())) {
    NoteWrong(absl::StrCat("the owner's response: ", Decided(recorded)));
    return;
  }
  {
    MutexLock lock(mutex_);
    (recorded.ok() ? acknowledged_ : open_)
        .push_back({claim, finalize.response()});
  }
  changed_.notify_all();
}

}  // namespace idempotency
