// Operations of a caller that go through RunOnce.
#ifndef IDEMPOTENCY_TESTS_FAULT_CALLER_ONCE_H_
#define IDEMPOTENCY_TESTS_FAULT_CALLER_ONCE_H_

#include <memory>
#include <string>
#include <vector>

#include "client/run_once.h"
#include "tests/fault/caller/world.h"

namespace idempotency::fault {

// With calls and with Bulk, over all servers. `recorder` must outlive them.
std::vector<std::unique_ptr<RunOnce>> MakeOnces(
    Recorder& recorder, const std::vector<std::string>& servers);

// What the function of an operation does and says, and its resolver.
FunctionResult Execute(Self& self, const v1::ClaimRequest& claim,
                       Execution& execution);
Resolution Resolve(Self& self, const v1::ClaimRequest& claim,
                   Execution& execution);

// One operation, to its result.
void RunOneOnce(Self& self, const Key& key);

}  // namespace idempotency::fault

#endif  // IDEMPOTENCY_TESTS_FAULT_CALLER_ONCE_H_
