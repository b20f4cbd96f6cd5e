#include "placement/policies/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(RegistryTest, EveryNameMakesThePolicyOfThatName) {
  for (const std::string_view name : PolicyNames()) {
    const auto policy = MakePolicy(name, {});
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ((*policy)->name(), name);
  }
}

TEST(RegistryTest, NoNameIsThereTwice) {
  const auto names = PolicyNames();
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
}

TEST(RegistryTest, TheDefaultIsAKnownPolicy) {
  EXPECT_THAT(PolicyNames(), Contains(kDefaultPolicyName));
}

TEST(RegistryTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto policy = MakePolicy("deepsek", {});
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(policy.status().message());
  EXPECT_THAT(message, HasSubstr("\"deepsek\""));
  for (const std::string_view name : PolicyNames()) {
    EXPECT_THAT(message, HasSubstr(std::string(name)));
  }
}

}  // namespace
}  // namespace eplb
