// The files of test vectors in tests/vectors, and the hexadecimal they use.
#ifndef IDEMPOTENCY_TESTS_SUPPORT_VECTORS_H_
#define IDEMPOTENCY_TESTS_SUPPORT_VECTORS_H_

#include <string>
#include <vector>

namespace idempotency {

std::string FromHex(const std::string& hex);
std::string ToHex(const std::string& bytes);

// `text` at each `separator`; an empty text is one empty field.
std::vector<std::string> SplitAt(char separator, const std::string& text);

// The rows of a file, each as its columns, without the header. Empty if there
// is no such file.
std::vector<std::vector<std::string>> ReadVectors(const std::string& name);

}  // namespace idempotency

#endif  // IDEMPOTENCY_TESTS_SUPPORT_VECTORS_H_
