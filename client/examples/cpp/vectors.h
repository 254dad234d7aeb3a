// The examples of the request hash that all languages share.
#ifndef IDEMPOTENCY_CLIENT_EXAMPLES_CPP_VECTORS_H_
#define IDEMPOTENCY_CLIENT_EXAMPLES_CPP_VECTORS_H_

#include <string>

namespace idempotency::payments {

// How many of that file hold; throws std::runtime_error at the first that does
// not.
int CheckVectors(const std::string& path);

}  // namespace idempotency::payments

#endif  // IDEMPOTENCY_CLIENT_EXAMPLES_CPP_VECTORS_H_
