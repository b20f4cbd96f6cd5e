// What an echo must be, found without the code under test.
#ifndef EPLB_TESTS_PLACEMENT_ECHO_ECHO_CHECK_H_
#define EPLB_TESTS_PLACEMENT_ECHO_ECHO_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "placement/echo/echo_plan.h"

namespace eplb::testing {

// One home an expert, in order; one layer.
Placement HomesInOrder(int32_t num_experts, int32_t num_gpus, int32_t num_nodes = 1);

// What is wrong with a plan for `counts` from equal shares, or nothing.
std::string FaultOfEcho(const Placement& homes, const EchoOptions& options,
                        const std::vector<int64_t>& counts, const EchoPlan& plan);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_PLACEMENT_ECHO_ECHO_CHECK_H_
