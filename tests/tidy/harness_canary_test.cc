#include <gtest/gtest.h>

namespace idempotency {
namespace {

TEST(HarnessCanary, FailsAlways) { FAIL() << "expected: the canary sings"; }

}  // namespace
}  // namespace idempotency
