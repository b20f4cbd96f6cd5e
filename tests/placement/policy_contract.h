// Contract that every policy must keep. A policy's test instantiates the suite:
//   INSTANTIATE_TEST_SUITE_P(Deepseek, PolicyContractTest, ::testing::Values(&MakeIt));
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "placement/policy.h"

namespace eplb {

// Makes a policy with the options to be tested.
using MakePolicyFunction = std::unique_ptr<Policy> (*)();

// The claims are in policy_contract.cc. Each call of Solve is given the static placement as the
// current one, which policies without memory ignore.
class PolicyContractTest : public ::testing::TestWithParam<MakePolicyFunction> {
 protected:
  std::unique_ptr<Policy> policy_ = GetParam()();
};

}  // namespace eplb
