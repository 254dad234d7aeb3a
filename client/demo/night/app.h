#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_APP_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_APP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/demo/night/timeline.h"

namespace idempotency::night {

// The app on somebody's phone, about to pay for one order.
struct AppOptions {
  std::vector<std::string> pods;  // NAME=HOST:PORT
  std::string key;
  std::string order;
  std::int64_t amount = 0;
  int tries = 1;
  // Gets a line for each try: number, pod, status code and body, separated by
  // tabs; without an answer the last two are `none` and `-`.
  std::string answers_file;
};

// Tries until it is told of the payment, at most `tries` times, each time at
// the next pod that can be reached. Returns whether it was told.
bool PayPatiently(const AppOptions& options, const Timeline& timeline);

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_APP_H_
