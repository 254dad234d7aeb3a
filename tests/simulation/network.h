// What lies between callers and replicas.
#ifndef IDEMPOTENCY_TESTS_SIMULATION_NETWORK_H_
#define IDEMPOTENCY_TESTS_SIMULATION_NETWORK_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/simulation/replica.h"

namespace idempotency {

// Requests and answers are lost, delayed and sent twice. Not thread-safe.
class Network {
 public:
  // The replicas must outlive everything that is sent.
  Network(Scheduler& scheduler, Weather& weather,
          const std::vector<std::unique_ptr<Replica>>& replicas)
      : scheduler_(scheduler), weather_(weather), replicas_(replicas) {}

  std::size_t replicas() const { return replicas_.size(); }

  // Either function is called as often as an answer arrives, or the news that
  // there will be none; `received`: a replica may have had the request.
  template <typename Command, typename Outcome>
  void Send(std::size_t replica, const Command& command,
            const Patience& patience,
            std::function<void(absl::StatusOr<Outcome>)> answered,
            std::function<void(bool received)> failed) {
    Random& random = scheduler_.random();
    const auto envelope = std::make_shared<const Envelope<Command, Outcome>>(
        Envelope<Command, Outcome>{command, patience, std::move(answered),
                                   std::move(failed)});
    if (!weather_.Strikes(random, weather_.lost_requests_per_mille,
                          "requests lost")) {
      ArriveAfter(Delay(), replica, envelope);
    }
    if (weather_.Strikes(random, weather_.duplicates_per_mille,
                         "requests duplicated")) {
      ArriveAfter(Delay() + random.Between(Milliseconds(0), Milliseconds(3000)),
                  random.Below(replicas_.size()), envelope);
    }
  }

 private:
  template <typename Command, typename Outcome>
  struct Envelope {
    Command command;
    Patience patience;
    std::function<void(absl::StatusOr<Outcome>)> answered;
    std::function<void(bool)> failed;
  };

  Microseconds Delay() {
    Random& random = scheduler_.random();
    if (weather_.Strikes(random, weather_.late_per_mille, "messages late")) {
      return random.Between(Milliseconds(30), Milliseconds(2000));
    }
    return weather_.Short(random);
  }

  template <typename Command, typename Outcome>
  void ArriveAfter(Microseconds delay, std::size_t replica,
                   std::shared_ptr<const Envelope<Command, Outcome>> envelope) {
    scheduler_.After(delay, [this, replica, envelope = std::move(envelope)] {
      Arrive(replica, envelope);
    });
  }

  template <typename Command, typename Outcome>
  void Arrive(std::size_t number,
              std::shared_ptr<const Envelope<Command, Outcome>> envelope) {
    Replica& replica = *replicas_[number];
    if (!replica.running()) {
      scheduler_.After(Delay(), [envelope] { envelope->failed(false); });
      return;
    }
    if (replica.pause_left() > Microseconds(0)) {
      ArriveAfter(replica.pause_left(), number, std::move(envelope));
      return;
    }
    replica.Serve<Command, Outcome>(
        envelope->command, envelope->patience,
        [this, envelope](absl::StatusOr<Outcome> outcome) {
          if (weather_.Strikes(scheduler_.random(),
                               weather_.lost_answers_per_mille,
                               "answers lost")) {
            return;
          }
          scheduler_.After(Delay(),
                           [envelope, outcome = std::move(outcome)]() mutable {
                             envelope->answered(std::move(outcome));
                           });
        },
        [this, envelope] {
          scheduler_.After(Delay(), [envelope] { envelope->failed(true); });
        });
  }

  Scheduler& scheduler_;
  Weather& weather_;
  const std::vector<std::unique_ptr<Replica>>& replicas_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SIMULATION_NETWORK_H_
