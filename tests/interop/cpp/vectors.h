// The examples of the request hash that all languages share.
#ifndef IDEMPOTENCY_TESTS_INTEROP_CPP_VECTORS_H_
#define IDEMPOTENCY_TESTS_INTEROP_CPP_VECTORS_H_

#include <string>

namespace idempotency::interop {

// How many of that file hold; throws std::runtime_error at the first that does
// not.
int CheckVectors(const std::string& path);

}  // namespace idempotency::interop

#endif  // IDEMPOTENCY_TESTS_INTEROP_CPP_VECTORS_H_
