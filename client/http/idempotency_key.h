// Reads the header field Idempotency-Key.
#ifndef IDEMPOTENCY_CLIENT_HTTP_IDEMPOTENCY_KEY_H_
#define IDEMPOTENCY_CLIENT_HTTP_IDEMPOTENCY_KEY_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace idempotency {

// The key in the field's values, one for each time that the field was sent;
// nothing if it was not. INVALID_ARGUMENT, with a message for the sender that
// does not repeat the value, if there is no one key to be read from them. A
// key is what was sent or it is refused: never trimmed, folded or cut to
// another.
//
//   "8e03978e-40d5"  a String of RFC 8941: printable ASCII, where \" is a
//                    quotation mark and \\ a backslash; no parameters
//   8e03978e-40d5    of clients older than the draft: printable ASCII without
//                    space, " \ , and ; . The same key as the String above
//
// Either has 1 to 255 bytes once read. Sent twice it is refused, also if both
// are equal, and so is a list. White space around a field's value is not part
// of it: who reads the header takes it away. What is still around a value here
// was sent in another guise (%20), and is refused.
absl::StatusOr<std::optional<std::string>> ParseIdempotencyKey(
    std::span<const std::string_view> values);

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_IDEMPOTENCY_KEY_H_
