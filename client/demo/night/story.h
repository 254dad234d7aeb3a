// The times of the night, the same with the coordinator and without it.
#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_STORY_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_STORY_H_

#include <array>
#include <chrono>

namespace idempotency::night {

using std::chrono::milliseconds;

// How long the app waits for a pod, and then before it tries again.
inline constexpr milliseconds kAppTimeout{1500};
inline constexpr std::array kAppPauses = {milliseconds(500),
                                          milliseconds(4000)};
inline constexpr int kAppTries = 1 + kAppPauses.size();

// How long a pod waits for the wallet.
inline constexpr milliseconds kWalletTimeout{4000};
// How long a pod's claim outlives the pod. Payments have 30 s by their policy;
// nobody wants to watch that.
inline constexpr milliseconds kLease{3000};

// The first pod is killed once the first try has timed out, while it still
// waits for the wallet.
static_assert(kAppTimeout < kWalletTimeout);
// It has renewed its lease a third of it ago at most: the second try finds it
// running, the third finds it over.
static_assert(kAppPauses[0] < kLease - kLease / 3);
static_assert(kAppPauses[1] > kLease);

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_STORY_H_
