// Prints what is decided in every situation, one line for all situations that
// come out alike, and compares it with outcomes.txt, which a reviewer can read
// beside the manual's tables. With IDEMPOTENCY_WRITE_OUTCOMES set, the file is
// written instead.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "server/core/errors.h"
#include "server/core/transitions.h"
#include "tests/unit/decision_table.h"
#include "tests/unit/situations.h"

namespace idempotency {
namespace {

constexpr char kFile[] = IDEMPOTENCY_UNIT_FOLDER "/outcomes.txt";

}  // namespace
}  // namespace idempotency
