#include "server/config/config_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

using ::testing::ElementsAre;

using Kind = ConfigValue::Kind;

constexpr Kind kAllKinds[] = {Kind::kInteger, Kind::kReal,    Kind::kText,
                              Kind::kTexts,   Kind::kUntyped, Kind::kOther};

// The kinds of `text` that `accepts` takes.
template <class Accepts>
std::vector<Kind> Taken(const std::string& text, Accepts accepts) {
  std::vector<Kind> taken;
  for (const Kind kind : kAllKinds) {
    if (accepts(ConfigValue{.kind = kind, .text = text})) taken.push_back(kind);
  }
  return taken;
}

TEST(ConfigValuesTest, EveryReaderTakesItsOwnKindAndUntypedText) {
  int32_t integer = 0;
  double real = 0;
  absl::Duration duration;
  Address address;
  std::string path;
  const auto as_integer = [&](const ConfigValue& v) { return SetInteger(v, 0, 9, &integer); };
  const auto as_real = [&](const ConfigValue& v) { return SetReal(v, 0, 9, &real); };
  const auto as_duration = [&](const ConfigValue& v) {
    return SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &duration);
  };
  const auto as_address = [&](const ConfigValue& v) { return SetAddress(v, true, &address); };
  const auto as_path = [&](const ConfigValue& v) { return SetPath(v, &path); };
  EXPECT_THAT(Taken("7", as_integer), ElementsAre(Kind::kInteger, Kind::kUntyped));
  EXPECT_THAT(Taken("7", as_real), ElementsAre(Kind::kInteger, Kind::kReal, Kind::kUntyped));
  EXPECT_THAT(Taken("7s", as_duration), ElementsAre(Kind::kText, Kind::kUntyped));
  EXPECT_THAT(Taken("[::1]:80", as_address), ElementsAre(Kind::kText, Kind::kUntyped));
  EXPECT_THAT(Taken("/a/b", as_path), ElementsAre(Kind::kText, Kind::kUntyped));
}

TEST(ConfigValuesTest, NumbersOutsideTheirRangeAndTextThatIsNoneAreRefused) {
  const auto integer = [](const std::string& text) { return Integer({.text = text}, -2, 5); };
  EXPECT_EQ(integer("-2"), -2);
  EXPECT_EQ(integer("5"), 5);
  for (const char* text : {"-3", "6", "", "five", "5.0", "5 5", "9223372036854775808"}) {
    EXPECT_EQ(integer(text), std::nullopt) << text;
  }
  double real = 0;
  EXPECT_TRUE(SetReal({.text = "0.25"}, 0, 1, &real));
  EXPECT_EQ(real, 0.25);
  for (const char* text : {"-0.1", "1.1", "nan", "inf", "", "half"}) {
    EXPECT_FALSE(SetReal({.text = text}, 0, 1, &real)) << text;
  }
}

TEST(ConfigValuesTest, AScaledNumberKeepsItsRangeBeforeTheScale) {
  double bytes_per_second = -1;
  EXPECT_TRUE(SetScaled({.text = "2.5"}, 0, 10, 1e9, &bytes_per_second));
  EXPECT_EQ(bytes_per_second, 2.5e9);
  EXPECT_FALSE(SetScaled({.text = "11"}, 0, 10, 1e9, &bytes_per_second));
  EXPECT_EQ(bytes_per_second, 2.5e9);
}

TEST(ConfigValuesTest, ADurationNeedsAUnitAndItsRange) {
  absl::Duration duration;
  const auto set = [&](const std::string& text) {
    return SetDuration({.text = text}, absl::Seconds(1), absl::Hours(1), &duration);
  };
  EXPECT_TRUE(set("1m30s"));
  EXPECT_EQ(duration, absl::Seconds(90));
  for (const char* text : {"90", "", "999ms", "1h1ns", "-5s", "inf", "soon"}) {
    EXPECT_FALSE(set(text)) << text;
  }
}

TEST(ConfigValuesTest, AUnixSocketIsAnAddressOnlyWhereItIsAllowed) {
  Address address;
  EXPECT_TRUE(SetAddress({.text = "unix:/run/a.sock"}, true, &address));
  EXPECT_EQ(address.unix_path, "/run/a.sock");
  EXPECT_FALSE(SetAddress({.text = "unix:/run/b.sock"}, false, &address));
  EXPECT_EQ(address.unix_path, "/run/a.sock");
  EXPECT_FALSE(SetAddress({.text = "nowhere"}, true, &address));
}

TEST(ConfigValuesTest, APathIsNotEmpty) {
  std::string path;
  EXPECT_FALSE(SetPath({.text = ""}, &path));
}

TEST(ConfigValuesTest, HostNamesComeAsAnArrayOrWithCommas) {
  std::vector<std::string> names;
  EXPECT_TRUE(SetHostNames({.kind = Kind::kTexts, .texts = {"a.b", "c-d_e"}}, &names));
  EXPECT_THAT(names, ElementsAre("a.b", "c-d_e"));
  EXPECT_TRUE(SetHostNames({.text = "x,y.z"}, &names));
  EXPECT_THAT(names, ElementsAre("x", "y.z"));
  EXPECT_FALSE(SetHostNames({.kind = Kind::kInteger, .text = "5"}, &names));
}

TEST(ConfigValuesTest, HostNamesWithAPortOrOtherCharactersOrTooManyAreRefused) {
  std::vector<std::string> names;
  for (const char* text : {"a:80", "a b", "a/b", "*", "[::1]"}) {
    EXPECT_FALSE(SetHostNames({.kind = Kind::kTexts, .texts = {text}}, &names)) << text;
  }
  EXPECT_FALSE(SetHostNames({.kind = Kind::kTexts, .texts = {""}}, &names));
  EXPECT_TRUE(SetHostNames({.kind = Kind::kTexts, .texts = {std::string(253, 'a')}}, &names));
  EXPECT_FALSE(SetHostNames({.kind = Kind::kTexts, .texts = {std::string(254, 'a')}}, &names));
  std::vector<std::string> many(kMaxHostNames, "a");
  EXPECT_TRUE(SetHostNames({.kind = Kind::kTexts, .texts = many}, &names));
  many.emplace_back("a");
  EXPECT_FALSE(SetHostNames({.kind = Kind::kTexts, .texts = many}, &names));
}

}  // namespace
}  // namespace eplb
