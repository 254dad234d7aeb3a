// What the processes of the night print: one story, told by several.
#ifndef IDEMPOTENCY_CLIENT_DEMO_NIGHT_TIMELINE_H_
#define IDEMPOTENCY_CLIENT_DEMO_NIGHT_TIMELINE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace idempotency::night {

// Thread-safe.
class Timeline {
 public:
  // `who` speaks; `began` is when the run began.
  Timeline(std::string who, absl::Time began);

  // Prints one line to standard output, in one piece: time since the beginning
  // in milliseconds, who, what.
  void Say(absl::string_view what) const;

 private:
  const std::string who_;
  const absl::Time began_;
};

}  // namespace idempotency::night

#endif  // IDEMPOTENCY_CLIENT_DEMO_NIGHT_TIMELINE_H_
