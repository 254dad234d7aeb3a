// A Coordinator that says where each of its calls is.
#ifndef IDEMPOTENCY_TESTS_INTEGRATION_STEPPED_COORDINATOR_H_
#define IDEMPOTENCY_TESTS_INTEGRATION_STEPPED_COORDINATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "client/coordinator.h"

namespace idempotency {

// Thread-safe if `step` is.
class SteppedCoordinator final : public Coordinator {
 public:
  // Gets "claim to be sent", "claim sent", "claim answered", "claim's answer
  // handled", in the threads that come by there; the same of "renewal",
  // "checkpoint" (a renewal with one), "finalize", "lookup" and "release".
  using Step = std::function<void(const std::string& name)>;

  SteppedCoordinator(std::shared_ptr<Coordinator> inner, Step step)
      : inner_(std::move(inner)), step_(std::move(step)) {}

  void Claim(const v1::ClaimRequest& request, const CallOptions& options,
             Answered<v1::ClaimResponse> answered) override {
    const std::string name = request.has_checkpoint()            ? "checkpoint"
                             : request.renew_fencing_token() > 0 ? "renewal"
                                                                 : "claim";
    Send(name, &Coordinator::Claim, request, options, std::move(answered));
  }
  void Finalize(const v1::FinalizeRequest& request, const CallOptions& options,
                Answered<v1::FinalizeResponse> answered) override {
    Send("finalize", &Coordinator::Finalize, request, options,
         std::move(answered));
  }
  void Lookup(const v1::LookupRequest& request, const CallOptions& options,
              Answered<v1::LookupResponse> answered) override {
    Send("lookup", &Coordinator::Lookup, request, options, std::move(answered));
  }
  void Release(const v1::ReleaseRequest& request, const CallOptions& options,
               Answered<v1::ReleaseResponse> answered) override {
    Send("release", &Coordinator::Release, request, options,
         std::move(answered));
  }

 private:
  template <typename Request, typename Response>
  void Send(const std::string& name,
            void (Coordinator::*method)(const Request&, const CallOptions&,
                                        Answered<Response>),
            const Request& request, const CallOptions& options,
            Answered<Response> answered) {
    step_(name + " to be sent");
    ((*inner_).*method)(request, options,
                        [step = step_, name, answered = std::move(answered)](
                            absl::StatusOr<Response> answer) {
                          step(name + " answered");
                          answered(std::move(answer));
                          step(name + "'s answer handled");
                        });
    step_(name + " sent");
  }

  const std::shared_ptr<Coordinator> inner_;
  const Step step_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_INTEGRATION_STEPPED_COORDINATOR_H_
