#include "tests/interop/cpp/vectors.h"

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/request_hash.h"
#include "tests/support/vectors.h"

namespace idempotency::interop {
namespace {

// A part is written in hex; `hex*n` is n times those bytes.
std::string ParsePart(const std::string& written) {
  const std::size_t star = written.find('*');
  std::size_t times = 1;
  if (star != std::string::npos &&
      !absl::SimpleAtoi(written.substr(star + 1), &times)) {
    throw std::runtime_error("not a number in " + written);
  }
  const std::string bytes = FromHex(written.substr(0, star));
  std::string part;
  for (; times > 0; --times) part += bytes;
  return part;
}

}  // namespace

int CheckVectors(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error("no " + path);
  int held = 0;
  for (; std::getline(file, line); ++held) {
    // Name, number of parts, parts, digest.
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    std::vector<std::string> parts;
    if (columns.at(1) != "0") {
      for (const std::string& part :
           std::vector<std::string>(absl::StrSplit(columns.at(2), ','))) {
        parts.push_back(ParsePart(part));
      }
    }
    const std::vector<std::string_view> views(parts.begin(), parts.end());
    if (absl::BytesToHexString(RequestHashOfParts(views)) != columns.at(3)) {
      throw std::runtime_error(columns.at(0) + ": another request hash");
    }
  }
  return held;
}

}  // namespace idempotency::interop
