#include "client/demo/night/timeline.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace idempotency::night {

Timeline::Timeline(std::string who, absl::Time began)
    : who_(std::move(who)), began_(began) {}

void Timeline::Say(absl::string_view what) const {
  const std::string line = absl::StrFormat(
      "%6d ms  %-7s %s\n", absl::ToInt64Milliseconds(absl::Now() - began_),
      who_, what);
  // Several processes write to one terminal or pipe: a line in one piece is
  // not mixed with another's.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace idempotency::night
