#include "base/toml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace eplb::wire {
namespace {

using ::testing::StartsWith;

// The value of `key`, or the error.
std::string Read(std::string_view text) {
  const absl::StatusOr<toml::table> table = ParseToml("f", text);
  if (!table.ok()) return std::string(table.status().message());
  return (*table)["key"].value_or(std::string("no key"));
}

constexpr char kStray[] =
    ": not TOML: a letter that is not ASCII outside strings and comments, or behind a backslash";

TEST(ParseTomlTest, LettersOutsideAsciiStandInStringsAndComments) {
  EXPECT_EQ(Read("key = \"\u00e9\\\"#\" # \u3042\n"), "\u00e9\"#");
  EXPECT_EQ(Read("key = \"\"\"\n\u3042\"\"x\"\"\" # \u3042"), "\u3042\"\"x");
  EXPECT_EQ(Read("key='\u3042\\'\n"), "\u3042\\");
}

TEST(ParseTomlTest, EachPartOfAKeyMayBeAString) {
  EXPECT_EQ(Read("[x.\"\u00e9\"]\n[x.'\u3042'.y]\n[[ x . \"\u00fc\" ]]\n"), "no key");
  EXPECT_EQ(Read("x.\"\u00e9\".'\u3042' = 1\nkey = \"a\""), "a");
  EXPECT_EQ(Read("key = \"a\"\nz = [\n{a = [1], b.\"\u00e9\" = 2},\n\"\u3042\"]\n[\"\u00e9\"]"),
            "a");
}

TEST(ParseTomlTest, ElsewhereTheyAreRefusedWithTheirLine) {
  EXPECT_EQ(Read("# \u00e9\nkey = \"\u00e9\"\n[\uFBAF]\n"), "f:3" + std::string(kStray));
  for (const char* text :
       {"\u00e9 = 1", "z = 19'x\u3042'", "z = [1'\u3042']", "z = \"a\"\"\u3042\"", "z = 1 \u2003",
        "z = 1.'\u3042'", "z = [ 1, 1.'\u3042']", "z = {a = 1.'\u3042'}",
        "[x.\"y\" .\"b.\"\u00e9\"]"}) {
    EXPECT_EQ(Read(text), "f:1" + std::string(kStray)) << text;
  }
}

TEST(ParseTomlTest, BehindABackslashTheyAreRefused) {
  EXPECT_EQ(Read("key = \"\"\"\\\u3042\"\"\""), "f:1" + std::string(kStray));
  EXPECT_EQ(Read("key = \"\"\"a\\\n \u00e9\"\"\""), "f:2" + std::string(kStray));
  EXPECT_EQ(Read("key = \"\"\"a\\\n b\\\\\u00e9\"\"\""), "ab\\\u00e9");
}

TEST(ParseTomlTest, AValueOnALineOfItsOwnIsNoKey) {
  EXPECT_EQ(Read("z = [\n1.'\u3042']"), "f:2" + std::string(kStray));
  EXPECT_EQ(Read("z = [\n[1.'\u3042']]"), "f:2" + std::string(kStray));
}

TEST(ParseTomlTest, AMarkOfUtf8AtTheStartIsSkipped) {
  EXPECT_EQ(Read("\xEF\xBB\xBFkey = \"a\""), "a");
  EXPECT_EQ(Read("\n\xEF\xBB\xBFkey = \"a\""), "f:2" + std::string(kStray));
}

TEST(ParseTomlTest, WhatIsNotTomlIsRefusedOnOneLine) {
  EXPECT_THAT(Read("key = \"a\"\nkey = \n"), StartsWith("f:2: not TOML: "));
  const std::string unclosed = Read("key = \"\"\"\n\n");
  EXPECT_THAT(unclosed, StartsWith("f:"));
  EXPECT_EQ(unclosed.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace eplb::wire
