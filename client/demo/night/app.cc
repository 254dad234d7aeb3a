#include "client/demo/night/app.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/demo/night/story.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "night.grpc.pb.h"

namespace idempotency::night {
namespace {

// A pod that is not connected to by then is taken for gone.
constexpr milliseconds kConnectTimeout{1000};

struct Pod {
  std::string name;
  std::shared_ptr<grpc::Channel> channel;
};

std::vector<Pod> PodsOf(const AppOptions& options) {
  std::vector<Pod> pods;
  for (const std::string& pod : options.pods) {
    const std::pair<std::string, std::string> name_and_address =
        absl::StrSplit(pod, absl::MaxSplits('=', 1));
    pods.push_back({name_and_address.first,
                    grpc::CreateChannel(name_and_address.second,
                                        grpc::InsecureChannelCredentials())});
  }
  return pods;
}

// Whether it is connected, which a channel to a killed process knows at once
// that it is not.
bool Reachable(const Pod& pod) {
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  for (;;) {
    const grpc_connectivity_state state = pod.channel->GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    if (!pod.channel->WaitForStateChange(state, deadline)) return false;
  }
}

class App {
 public:
  App(const AppOptions& options, const Timeline& timeline)
      : options_(options),
        timeline_(timeline),
        pods_(PodsOf(options)),
        answers_(options.answers_file, std::ios::app) {}

  bool Pay() {
    for (int number = 1; number <= options_.tries; ++number) {
      const std::optional<PayResponse> answer = Try(number, NextPod());
      if (answer && answer->status_code() < 300) return true;
      if (number == options_.tries) break;
      milliseconds pause =
          kAppPauses[std::min<std::size_t>(number, kAppPauses.size()) - 1];
      if (answer) {
        pause = std::max(pause, milliseconds(answer->retry_after_ms()));
      }
      std::this_thread::sleep_for(pause);
    }
    return false;
  }

 private:
  // As a load balancer does: the next one that is there.
  const Pod& NextPod() {
    for (std::size_t i = 0; i < pods_.size(); ++i) {
      const Pod& pod = pods_[next_++ % pods_.size()];
      if (Reachable(pod)) return pod;
      timeline_.Say(absl::StrCat("cannot reach ", pod.name));
    }
    return pods_.front();
  }

  // Nothing where no answer came.
  std::optional<PayResponse> Try(int number, const Pod& pod) {
    const std::string name = absl::StrCat("try ", number, " at ", pod.name);
    timeline_.Say(absl::StrCat(name, ": pay ", options_.amount, " for order ",
                               options_.order));
    PayRequest request;
    request.set_idempotency_key(options_.key);
    request.set_order(options_.order);
    request.set_amount(options_.amount);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAppTimeout);
    PayResponse response;
    const grpc::Status status =
        Payments::NewStub(pod.channel)->Pay(&context, request, &response);
    if (!status.ok()) {
      timeline_.Say(
          absl::StrCat(name, ": NO ANSWER (", status.error_message(), ")"));
      Record(number, pod, "none\t-");
      return std::nullopt;
    }
    timeline_.Say(absl::StrCat(name, ": ", response.status_code(), " ",
                               response.body(),
                               response.replayed() ? " (replayed)" : ""));
    Record(number, pod,
           absl::StrCat(response.status_code(), "\t", response.body()));
    return response;
  }

  void Record(int number, const Pod& pod, absl::string_view answer) {
    answers_ << number << '\t' << pod.name << '\t' << answer << std::endl;
  }

  const AppOptions options_;
  const Timeline& timeline_;
  const std::vector<Pod> pods_;
  std::size_t next_ = 0;
  std::ofstream answers_;
};

}  // namespace

bool PayPatiently(const AppOptions& options, const Timeline& timeline) {
  return App(options, timeline).Pay();
}

}  // namespace idempotency::night
