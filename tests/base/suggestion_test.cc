#include "base/suggestion.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

TEST(SuggestionTest, TheNearestWithinAThirdOfTheNameIsSuggested) {
  const std::vector<std::string> known = {"policy.name", "policy.mode", "drain.grace", "ab"};
  EXPECT_EQ(Suggestion("policy.nam", known), ", did you mean policy.name?");
  EXPECT_EQ(Suggestion("policy.made", known), ", did you mean policy.mode?");
  EXPECT_EQ(Suggestion("poli.name", known), ", did you mean policy.name?");
  EXPECT_EQ(Suggestion("polciy.naem", known), ", did you mean policy.name?");
  EXPECT_EQ(Suggestion("ba", std::vector<std::string>{"ab"}), "");
  EXPECT_EQ(Suggestion("plasn", std::vector<std::string>{"plans"}), ", did you mean plans?");
  EXPECT_EQ(Suggestion("pol.name", known), "") << "3 letters off are more than a third of 8";
  EXPECT_EQ(Suggestion("ac", known), "") << "one letter is more than a third of 2";
  EXPECT_EQ(Suggestion("", known), "");
  EXPECT_EQ(Suggestion(std::string(1 << 20, 'a'), known), "");
  EXPECT_EQ(Suggestion("policy.name", {}), "");
}

}  // namespace
}  // namespace eplb
