// A hash of a record's name that is the same in every run, unlike absl::Hash,
// so that a simulated run can be repeated.
#ifndef IDEMPOTENCY_SERVER_CORE_STABLE_HASH_H_
#define IDEMPOTENCY_SERVER_CORE_STABLE_HASH_H_

#include <cstddef>
#include <functional>
#include <string_view>

#include "server/core/types.h"

namespace idempotency {

inline std::size_t StableHashOf(const RecordId& id) {
  const std::hash<std::string_view> hash;
  return hash(id.scope) * 31 + hash(id.key);
}

}  // namespace idempotency

#endif  // IDEMPOTENCY_SERVER_CORE_STABLE_HASH_H_
