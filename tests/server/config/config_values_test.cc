#include "server/config/config_values.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

using Kind = WrittenValue::Kind;

// Returns the value that is read, as text; "refused" for none.
template <class Range>
std::string Read(const Range& range, const WrittenValue& written) {
  const std::optional<Scalar> value = range.Read(written);
  return value ? ScalarText(*value) : "refused";
}

TEST(ConfigValuesTest, AUnixSocketIsAnAddressOnlyWhereItIsAllowed) {
  const WrittenValue socket = {.text = "unix:/run/a.sock"};
  EXPECT_EQ(Read(AddressRange{.unix_allowed = true}, socket), "unix:/run/a.sock");
  EXPECT_EQ(Read(AddressRange{}, socket), "refused");
  EXPECT_EQ(Read(AddressRange{}, {.text = "[::1]:80"}), "[::1]:80");
  EXPECT_EQ(Read(AddressRange{.unix_allowed = true}, {.text = "nowhere"}), "refused");
  EXPECT_EQ(Read(AddressRange{}, {.kind = Kind::kInteger, .text = "80"}), "refused");
}

TEST(ConfigValuesTest, APathIsATextAndNotEmpty) {
  const PathRange paths = {"a path"};
  EXPECT_EQ(Read(paths, {.kind = Kind::kText, .text = "/a/b"}), "/a/b");
  EXPECT_EQ(Read(paths, {.text = ""}), "refused");
  EXPECT_EQ(Read(paths, {.kind = Kind::kInteger, .text = "7"}), "refused");
}

TEST(ConfigValuesTest, ABandwidthIsANumberOrHasAUnit) {
  EXPECT_EQ(Read(BandwidthRange{}, {.kind = Kind::kInteger, .text = "450"}), "450 GB/s");
  EXPECT_EQ(Read(BandwidthRange{}, {.kind = Kind::kText, .text = "400Gb/s"}), "50 GB/s");
  EXPECT_EQ(Read(BandwidthRange{}, {.kind = Kind::kTexts, .text = "450"}), "refused");
}

TEST(ConfigValuesTest, ABooleanIsOneOfTomlOrAWordOfAVariable) {
  for (const char* word : {"true", "false"}) {
    EXPECT_EQ(Read(BooleanRange{}, {.kind = Kind::kOther, .text = word}), word);
    EXPECT_EQ(Read(BooleanRange{}, {.text = word}), word);
    EXPECT_EQ(Read(BooleanRange{}, {.kind = Kind::kText, .text = word}), "refused");
  }
  for (const char* word : {"", "yes", "1", "True"}) {
    EXPECT_EQ(Read(BooleanRange{}, {.text = word}), "refused") << word;
  }
  EXPECT_EQ(Read(BooleanRange{}, {.kind = Kind::kOther, .text = "a table"}), "refused");
}

TEST(ConfigValuesTest, HostNamesComeAsAnArrayOrWithCommas) {
  const HostNameRange names = {.most = 64};
  EXPECT_EQ(Read(names, {.kind = Kind::kTexts, .texts = {"a.b", "c-d_e"}}), "a.b,c-d_e");
  EXPECT_EQ(Read(names, {.text = "x,y.z"}), "x,y.z");
  EXPECT_EQ(Read(names, {.text = ""}), "");
  EXPECT_EQ(Read(names, {.kind = Kind::kInteger, .text = "5"}), "refused");
}

TEST(ConfigValuesTest, HostNamesWithAPortOrOtherCharactersOrTooManyAreRefused) {
  const auto read = [](const std::vector<std::string>& texts) {
    return Read(HostNameRange{.most = 64}, {.kind = Kind::kTexts, .texts = texts});
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
