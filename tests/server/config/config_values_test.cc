#include "server/config/config_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace eplb {
namespace {

using Kind = WrittenValue::Kind;

// Returns the text that a kind reads; "refused" for none.
std::string Read(std::string_view kind, const WrittenValue& written) {
  const auto found = std::ranges::find(ConfigTextKinds(), kind, &wire::TextKind::name);
  return found->range.canonical(written).value_or("refused");
}

TEST(ConfigValuesTest, AUnixSocketIsAnAddressOnlyWhereItIsAllowed) {
  const WrittenValue socket = {.text = "unix:/run/a.sock"};
  EXPECT_EQ(Read("address or unix", socket), "unix:/run/a.sock");
  EXPECT_EQ(Read("address", socket), "refused");
  EXPECT_EQ(Read("address", {.text = "[::1]:80"}), "[::1]:80");
  EXPECT_EQ(Read("address or unix", {.text = "nowhere"}), "refused");
  EXPECT_EQ(Read("address", {.kind = Kind::kInteger, .text = "80"}), "refused");
}

TEST(ConfigValuesTest, ABandwidthIsANumberOrHasAUnit) {
  EXPECT_EQ(Read("bandwidth", {.kind = Kind::kInteger, .text = "450"}), "450 GB/s");
  EXPECT_EQ(Read("bandwidth", {.kind = Kind::kText, .text = "400Gb/s"}), "50 GB/s");
  EXPECT_EQ(Read("bandwidth", {.kind = Kind::kTexts, .text = "450"}), "refused");
}

TEST(ConfigValuesTest, ABooleanIsOneOfTomlOrAWordOfAVariable) {
  for (const char* word : {"true", "false"}) {
    EXPECT_EQ(Read("boolean", {.kind = Kind::kOther, .text = word}), word);
    EXPECT_EQ(Read("boolean", {.text = word}), word);
    EXPECT_EQ(Read("boolean", {.kind = Kind::kText, .text = word}), "refused");
  }
  for (const char* word : {"", "yes", "1", "True"}) {
    EXPECT_EQ(Read("boolean", {.text = word}), "refused") << word;
  }
  EXPECT_EQ(Read("boolean", {.kind = Kind::kOther, .text = "a table"}), "refused");
}

TEST(ConfigValuesTest, HostNamesComeAsAnArrayOrWithCommas) {
  const char* const names = "hosts";
  EXPECT_EQ(Read(names, {.kind = Kind::kTexts, .texts = {"a.b", "c-d_e"}}), "a.b,c-d_e");
  EXPECT_EQ(Read(names, {.text = "x,y.z"}), "x,y.z");
  EXPECT_EQ(Read(names, {.text = ""}), "");
  EXPECT_EQ(Read(names, {.kind = Kind::kInteger, .text = "5"}), "refused");
}

TEST(ConfigValuesTest, HostNamesWithAPortOrOtherCharactersOrTooManyAreRefused) {
  const auto read = [](const std::vector<std::string>& texts) {
    return Read("hosts", {.kind = Kind::kTexts, .texts = texts});
  };
  for (const char* text : {"a:80", "a b", "a/b", "*", "[::1]", ""}) {
    EXPECT_EQ(read({text}), "refused") << text;
  }
  EXPECT_EQ(read({std::string(253, 'a')}), std::string(253, 'a'));
  EXPECT_EQ(read({std::string(254, 'a')}), "refused");
  EXPECT_NE(read(std::vector<std::string>(64, "a")), "refused");
  EXPECT_EQ(read(std::vector<std::string>(65, "a")), "refused");
}

}  // namespace
}  // namespace eplb
